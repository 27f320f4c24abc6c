#include "csrc/plan/coordinator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"

namespace hvl::plan {
namespace {

// Decisions are cut into frames of about this size.
constexpr std::size_t kFrameBytes = std::size_t{1} << 20;

// After a mismatch has been seen, wait this long for the ranks that have not submitted the name
// yet, so that the error can tell what each rank has.
constexpr Duration kMismatchGrace = std::chrono::seconds(1);

// Failed instances that some rank has not acknowledged: far beyond what a rank that answers leaves.
constexpr std::size_t kMaxDebts = 65536;

Status Nonsense(std::string text) { return {StatusCode::kInternal, std::move(text)}; }

std::uint64_t SaturatingProduct(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  return b != 0 && a > kMost / b ? kMost : a * b;
}

std::uint64_t SaturatingSum(std::span<const std::int64_t> values) {
  std::uint64_t sum = 0;
  for (const std::int64_t value : values) {
    const auto term = static_cast<std::uint64_t>(value);
    sum += std::min(term, std::numeric_limits<std::uint64_t>::max() - sum);
  }
  return sum;
}

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Coordinator::Coordinator(int size, std::uint64_t generation, const Options& options)
    : size_(size),
      generation_(generation),
      options_(options),
      batcher_(options.fusion_threshold_bytes),
      epoch_of_rank_(static_cast<std::size_t>(size)),
      in_current_epoch_(size),
      acknowledged_(static_cast<std::size_t>(size)) {}

// ---- announcements

Status Coordinator::OnAnnounce(int from, wire::Announce&& announce, TimePoint now,
                               Effects& effects) {
  if (departed_) return Status::Ok();  // its rank hears of the departure and fails by itself
  HVL_RETURN_IF_ERROR(EnterEpoch(from, announce.epoch));
  HVL_RETURN_IF_ERROR(SettleDebts(from, announce.acknowledged));
  HVL_RETURN_IF_ERROR(OnKnown(from, announce, now, effects));
  for (wire::Fresh& fresh : announce.fresh) {
    HVL_RETURN_IF_ERROR(OnFresh(from, std::move(fresh), now, effects));
  }
  Conclude();
  return Status::Ok();
}

Status Coordinator::OnKnown(int from, const wire::Announce& announce, TimePoint now,
                            Effects& effects) {
  std::span<const std::int64_t> dims(announce.known_first_dims);
  for (const wire::IdRun& run : announce.known) {
    for (std::uint32_t id = run.first; id < run.first + run.count; ++id) {
      HVL_ASSIGN_OR_RETURN(const Index index, ResolveId(announce.epoch, id));
      Record& record = records_[index];
      std::span<const std::int64_t> first_dims;
      if (record.agreed.kind == OpKind::kAllgather) {
        const std::size_t count = record.agreed.tensors.size();
        if (dims.size() < count) return Nonsense("too few first dimensions");
        first_dims = dims.first(count);
        dims = dims.subspan(count);
      }
      if (record.unsettled_debts > 0 && ConsumeDebt(index, from)) continue;
      HVL_RETURN_IF_ERROR(Join(index, record.agreed.kind, from, now, effects));
      if (!first_dims.empty()) NoteFirstDims(index, from, first_dims);
      if (!record.proposals.empty()) CheckMismatch(index, now);
      if (record.announced.full()) Complete(index, effects);
    }
  }
  if (!dims.empty()) return Nonsense("too many first dimensions");
  return Status::Ok();
}

Status Coordinator::OnFresh(int from, wire::Fresh&& fresh, TimePoint now, Effects& effects) {
  const std::optional<Index> found = records_.Find(fresh.signature.name);
  const Index index = found ? *found : records_.Add(fresh.signature.name);
  Record& record = records_[index];
  if (record.unsettled_debts > 0 && ConsumeDebt(index, from)) return Status::Ok();
  HVL_RETURN_IF_ERROR(Join(index, fresh.signature.kind, from, now, effects));
  record.transient = record.transient || fresh.transient;
  if (!fresh.first_dims.empty()) NoteFirstDims(index, from, fresh.first_dims);
  // Also without an id: the ids may have ended after another rank used one in this instance.
  const bool as_agreed = !record.costs.empty() && record.agreed == fresh.signature;
  if (!as_agreed) {
    const auto same = std::find_if(
        record.proposals.begin(), record.proposals.end(),
        [&fresh](const Proposal& proposal) { return proposal.signature == fresh.signature; });
    if (same != record.proposals.end()) {
      same->ranks.Insert(from);
    } else {
      record.proposals.push_back({std::move(fresh.signature), RankSet(size_)});
      record.proposals.back().ranks.Insert(from);
    }
  }
  if (!record.proposals.empty()) CheckMismatch(index, now);
  if (record.announced.full()) Complete(index, effects);
  return Status::Ok();
}

Result<Coordinator::Index> Coordinator::ResolveId(std::uint32_t epoch, std::uint32_t id) const {
  const std::vector<Index>& table = epoch == epoch_ ? by_id_ : by_previous_id_;
  if (id >= table.size()) return Nonsense(Format("id {} of {}", id, table.size()));
  return table[id];
}

Status Coordinator::Join(Index index, OpKind kind, int from, TimePoint now, Effects& effects) {
  Record& record = records_[index];
  if (record.phase == Phase::kIdle) {
    record.phase = Phase::kWaiting;
    record.transient = false;
    record.announced = RankSet(size_);
    record.proposals.clear();
    record.first_dims.clear();
    record.first_announced = now;
    LinkNewest(index);
  }
  if (!record.announced.Insert(from)) {
    return Nonsense(Format("'{}' announced twice", records_.name(index)));
  }
  if (tracing_) effects.ready.push_back({kind, records_.name(index), from});
  return Status::Ok();
}

void Coordinator::NoteFirstDims(Index index, int from, std::span<const std::int64_t> dims) {
  Record& record = records_[index];
  const auto ranks = static_cast<std::size_t>(size_);
  if (record.first_dims.empty()) record.first_dims.resize(dims.size() * ranks);
  if (record.first_dims.size() != dims.size() * ranks) return;  // a mismatch, found elsewhere
  for (std::size_t tensor = 0; tensor < dims.size(); ++tensor) {
    record.first_dims[tensor * ranks + static_cast<std::size_t>(from)] = dims[tensor];
  }
}

void Coordinator::Complete(Index index, Effects& effects) {
  Record& record = records_[index];
  if (record.proposals.empty()) return MakeReady(index);
  if (record.proposals.size() > 1 || !record.proposals.front().ranks.full()) {
    return FailMismatch(index, effects);
  }
  record.agreed = std::move(record.proposals.front().signature);
  record.proposals.clear();
  record.costs.clear();
  for (const wire::TensorSignature& tensor : record.agreed.tensors) {
    record.costs.push_back({KeyOf(record.agreed, tensor.dtype), TensorBytes(tensor)});
  }
  if (record.agreed.tensors.empty()) record.costs.push_back({KeyOf(record.agreed, {}), 0});
  MakeReady(index);
}

void Coordinator::MakeReady(Index index) {
  Record& record = records_[index];
  Unlink(index);
  record.phase = Phase::kReady;
  record.undispatched = record.costs.size();
  constexpr std::size_t kMemberBytes = 16;
  constexpr std::size_t kDimBytes = 10;
  const auto ranks = static_cast<std::size_t>(size_);
  batcher_.BeginOperation();
  for (std::size_t i = 0; i < record.costs.size(); ++i) {
    std::uint64_t bytes = record.costs[i].bytes;
    std::size_t frame_bytes = kMemberBytes;
    if (!record.id) frame_bytes += records_.name(index).size();
    if (!record.first_dims.empty()) {
      const std::span<const std::int64_t> dims(record.first_dims);
      bytes = SaturatingProduct(bytes, SaturatingSum(dims.subspan(i * ranks, ranks)));
      frame_bytes += kDimBytes * ranks;
    }
    batcher_.Add({index, static_cast<std::uint32_t>(i)}, record.costs[i].key, bytes, frame_bytes);
  }
}

// ---- failures

void Coordinator::CheckMismatch(Index index, TimePoint now) {
  Record& record = records_[index];
  if (record.mismatch_deadline) return;
  int proposed = 0;
  for (const Proposal& proposal : record.proposals) proposed += proposal.ranks.count();
  if (record.proposals.size() == 1 && proposed == record.announced.count()) return;
  record.mismatch_deadline = now + kMismatchGrace;
  mismatched_.push_back(index);
}

void Coordinator::FailMismatch(Index index, Effects& effects) {
  const Record& record = records_[index];
  std::vector<Variant> variants;
  RankSet as_agreed = record.announced;
  for (const Proposal& proposal : record.proposals) {
    variants.push_back({&proposal.signature, proposal.ranks});
    for (int rank = 0; rank < size_; ++rank) {
      if (proposal.ranks.Contains(rank)) as_agreed.Erase(rank);
    }
  }
  if (!as_agreed.empty()) variants.push_back({&record.agreed, as_agreed});
  std::sort(variants.begin(), variants.end(),
            [](const Variant& a, const Variant& b) { return a.ranks.First() < b.ranks.First(); });
  Status status = MismatchError(records_.name(index), variants, record.announced.Complement());
  Fail(index, std::move(status), effects);
}

void Coordinator::Fail(Index index, Status status, Effects& effects) {
  Record& record = records_[index];
  Unlink(index);
  wire::Decide& decide = Building();
  building_bytes_ += records_.name(index).size() + status.message().size();
  decide.failures.push_back({records_.name(index), std::move(status)});
  RankSet missing = record.announced.Complement();
  if (!missing.empty()) {
    ++record.unsettled_debts;
    debts_.push_back({index, decide.number, std::move(missing)});
    if (debts_.size() > kMaxDebts) {
      const int rank = debts_.front().missing.First();
      effects.fatal = Status(
          StatusCode::kResourceExhausted,
          Format("{} operations have failed and rank {} has not heard of one of them: it hangs",
                 debts_.size(), rank),
          rank);
    }
  }
  if (record.mismatch_deadline) std::erase(mismatched_, index);
  record.mismatch_deadline.reset();
  record.proposals.clear();
  record.phase = Phase::kIdle;
  ReleaseIfUnused(index);
  if (building_bytes_ > kFrameBytes) CutDecision();
}

std::size_t Coordinator::FirstUnsettledDebt(int from) const {
  // Debts are in the order of decisions.
  const auto first = std::upper_bound(
      debts_.begin(), debts_.end(), acknowledged_[static_cast<std::size_t>(from)],
      [](std::uint64_t decision, const Debt& debt) { return decision < debt.decision; });
  return static_cast<std::size_t>(first - debts_.begin());
}

Status Coordinator::SettleDebts(int from, std::uint64_t acknowledged) {
  std::uint64_t& last = acknowledged_[static_cast<std::size_t>(from)];
  if (acknowledged < last || acknowledged > last_decision_) {
    return Nonsense(Format("decision {} acknowledged after {}, the last one is {}", acknowledged,
                           last, last_decision_));
  }
  for (std::size_t i = FirstUnsettledDebt(from);
       i < debts_.size() && debts_[i].decision <= acknowledged;) {
    debts_[i].missing.Erase(from);
    if (!RemoveDebtIfSettled(i)) ++i;
  }
  last = acknowledged;
  return Status::Ok();
}

bool Coordinator::ConsumeDebt(Index index, int from) {
  for (std::size_t i = FirstUnsettledDebt(from); i < debts_.size(); ++i) {
    if (debts_[i].record != index || !debts_[i].missing.Contains(from)) continue;
    debts_[i].missing.Erase(from);
    RemoveDebtIfSettled(i);
    return true;
  }
  return false;
}

bool Coordinator::RemoveDebtIfSettled(std::size_t position) {
  if (!debts_[position].missing.empty()) return false;
  const Index index = debts_[position].record;
  debts_.erase(debts_.begin() + static_cast<std::ptrdiff_t>(position));
  --records_[index].unsettled_debts;
  ReleaseIfUnused(index);
  return true;
}

void Coordinator::ReleaseIfUnused(Index index) {
  const Record& record = records_[index];
  if (record.phase == Phase::kIdle && !record.id && !record.previous_id &&
      record.unsettled_debts == 0) {
    records_.Remove(index);
  }
}

// ---- ids

Status Coordinator::EnterEpoch(int from, std::uint32_t epoch) {
  std::uint32_t& last = epoch_of_rank_[static_cast<std::size_t>(from)];
  // A new epoch starts only when all ranks have reached the one before, so `last` is never older.
  if (epoch < last || epoch > epoch_) {
    return Nonsense(Format("ids of epoch {} after {}, now is {}", epoch, last, epoch_));
  }
  last = epoch;
  if (previous_alive_ && epoch == epoch_) {
    in_current_epoch_.Insert(from);
    if (in_current_epoch_.full()) DropPreviousEpoch();
  }
  return Status::Ok();
}

void Coordinator::StartEpoch() {
  ++epoch_;
  by_previous_id_ = std::exchange(by_id_, {});
  previous_alive_ = true;
  in_current_epoch_ = RankSet(size_);
  for (const Index index : by_previous_id_) {
    records_[index].previous_id = std::exchange(records_[index].id, std::nullopt);
  }
}

void Coordinator::DropPreviousEpoch() {
  previous_alive_ = false;
  for (const Index index : std::exchange(by_previous_id_, {})) {
    records_[index].previous_id.reset();
    ReleaseIfUnused(index);
  }
}

// ---- stalls

void Coordinator::LinkNewest(Index index) {
  Record& record = records_[index];
  record.older = newest_;
  record.newer = kNoIndex;
  (newest_ == kNoIndex ? oldest_ : records_[newest_].newer) = index;
  newest_ = index;
  if (!options_.stall_check) return;
  record.next_warning = record.first_announced + options_.stall_warning;
  const TimePoint due = record.first_announced + FirstStallAge();
  if (!stall_check_at_ || due < *stall_check_at_) stall_check_at_ = due;
}

void Coordinator::Unlink(Index index) {
  Record& record = records_[index];
  (record.older == kNoIndex ? oldest_ : records_[record.older].newer) = record.newer;
  (record.newer == kNoIndex ? newest_ : records_[record.newer].older) = record.older;
  if (oldest_ == kNoIndex) stall_check_at_.reset();
}

Duration Coordinator::FirstStallAge() const {
  if (options_.stall_shutdown == Duration{}) return options_.stall_warning;
  return std::min(options_.stall_warning, options_.stall_shutdown);
}

void Coordinator::Tick(TimePoint now, Effects& effects) {
  if (departed_) return;
  const std::vector<Index> mismatched = mismatched_;  // FailMismatch changes it
  for (const Index index : mismatched) {
    if (records_[index].mismatch_deadline <= now) FailMismatch(index, effects);
  }
  if (stall_check_at_ && *stall_check_at_ <= now) CheckStalls(now, effects);
  Conclude();
}

void Coordinator::CheckStalls(TimePoint now, Effects& effects) {
  // Operations that are nearly due are reported with those that are, so that the tensors of one
  // step make one notice and not many.
  const Duration tolerance = options_.stall_warning / 10;
  std::vector<Index> warned;
  std::vector<Index> expired;
  stall_check_at_.reset();
  const auto due = [this](TimePoint at) {
    if (!stall_check_at_ || at < *stall_check_at_) stall_check_at_ = at;
  };
  for (Index index = oldest_; index != kNoIndex; index = records_[index].newer) {
    Record& record = records_[index];
    const Duration age = now - record.first_announced;
    if (options_.stall_shutdown != Duration{} && age >= options_.stall_shutdown) {
      expired.push_back(index);
      continue;
    }
    if (record.next_warning - now <= tolerance) {
      warned.push_back(index);
      // Ages of warnings: once, twice, four times, ... stall_warning.
      while (record.next_warning - now <= tolerance) {
        record.next_warning += record.next_warning - record.first_announced;
      }
    }
    due(record.next_warning);
    if (options_.stall_shutdown != Duration{})
      due(record.first_announced + options_.stall_shutdown);
    if (age + tolerance < FirstStallAge()) break;  // the others are younger still
  }
  if (!warned.empty()) effects.notices.push_back(StallNotice(warned, now));
  for (const Index index : expired) {
    const Record& record = records_[index];
    Fail(index, StallError(record, records_.name(index), now - record.first_announced), effects);
  }
}

Notice Coordinator::StallNotice(const std::vector<Index>& stalled, TimePoint now) const {
  constexpr std::size_t kMaxShown = 10;
  std::string text = Format(
      "{} operation{} wait{} for ranks that have not submitted {} (do all ranks run the same "
      "steps? is a rank stuck or slow?)",
      stalled.size(), stalled.size() == 1 ? "" : "s", stalled.size() == 1 ? "s" : "",
      stalled.size() == 1 ? "it" : "them");
  for (std::size_t i = 0; i < stalled.size() && i < kMaxShown; ++i) {
    const Record& record = records_[stalled[i]];
    text += Format("\n  '{}' for {:.1f} s: missing on {}; ready on {}", records_.name(stalled[i]),
                   Seconds(now - record.first_announced), record.announced.Complement().ToString(),
                   record.announced.ToString());
  }
  if (stalled.size() > kMaxShown) text += Format("\n  and {} more", stalled.size() - kMaxShown);
  return {LogLevel::kWarning, std::move(text)};
}

Status Coordinator::StallError(const Record& record, const std::string& name, Duration age) const {
  const RankSet missing = record.announced.Complement();
  return {
      StatusCode::kTimeout,
      Format("tensor '{}' has waited {:.1f} s for {} (the limit is "
             "HVL_STALL_SHUTDOWN_TIME_SECONDS={:g}); {} submitted it. Do all ranks run the same "
             "steps?",
             name, Seconds(age), missing.ToString(), Seconds(options_.stall_shutdown),
             record.announced.ToString()),
      missing.First()};
}

std::optional<TimePoint> Coordinator::next_deadline() const {
  std::optional<TimePoint> deadline = stall_check_at_;
  for (const Index index : mismatched_) {
    const TimePoint at = *records_[index].mismatch_deadline;
    if (!deadline || at < *deadline) deadline = at;
  }
  return deadline;
}

// ---- decisions

void Coordinator::OnBatchFinished(std::uint64_t sequence) {
  HVL_CHECK(sequence > finished_ && sequence <= dispatched_,
            Format("batch {} finished after {} of {}", sequence, finished_, dispatched_));
  finished_ = sequence;
  if (!departed_) Conclude();
}

void Coordinator::OnDeparture(int rank, std::uint64_t batches_finished) {
  if (departed_) return;
  departed_ = true;
  Building().departure = wire::Departure{rank, batches_finished};
  CutDecision();
  records_ = {};
  batcher_.Clear();
  by_id_.clear();
  by_previous_id_.clear();
  debts_.clear();
  mismatched_.clear();
  stall_check_at_.reset();
}

void Coordinator::Conclude() {
  // While the data plane is busy let small tensors gather; a full batch need not wait.
  if (!batcher_.empty() && finished_ == dispatched_) {
    for (const auto& tensors : batcher_.TakeAll()) Dispatch(tensors);
  } else if (batcher_.has_full()) {
    for (const auto& tensors : batcher_.TakeFull()) Dispatch(tensors);
  }
  if (building_) CutDecision();
}

void Coordinator::Dispatch(const std::vector<ReadyTensor>& tensors) {
  wire::Decide& decide = Building();
  ++dispatched_;
  if (decide.batches.empty()) decide.first_sequence = dispatched_;
  wire::DecidedBatch& batch = decide.batches.emplace_back();
  for (std::size_t i = 0; i < tensors.size();) {
    const Index index = tensors[i].operation;
    const std::uint32_t first = tensors[i].tensor_index;
    std::uint32_t count = 0;
    while (i < tensors.size() && tensors[i] == ReadyTensor{index, first + count}) {
      ++count;
      ++i;
    }
    AppendMember(batch, index, first, count);
  }
  if (building_bytes_ > kFrameBytes) CutDecision();
}

void Coordinator::AppendMember(wire::DecidedBatch& batch, Index index, std::uint32_t first_tensor,
                               std::uint32_t tensor_count) {
  Record& record = records_[index];
  if (!record.first_dims.empty()) {
    const auto ranks = static_cast<std::ptrdiff_t>(size_);
    const auto begin = record.first_dims.begin() + first_tensor * ranks;
    batch.first_dims.insert(batch.first_dims.end(), begin, begin + tensor_count * ranks);
    building_bytes_ += tensor_count * static_cast<std::size_t>(size_);
  }
  const bool whole = tensor_count == record.costs.size();
  wire::Member* last = batch.members.empty() ? nullptr : &batch.members.back();
  if (whole && record.id && last != nullptr && last->name.empty() && !last->range &&
      *last->id + last->count == *record.id) {
    ++last->count;
  } else {
    wire::Member& member = batch.members.emplace_back();
    if (record.id) {
      member.id = record.id;
    } else {
      member.name = records_.name(index);
      member.id = record.id = NewId(index);
    }
    if (!whole) member.range = {first_tensor, tensor_count};
    building_bytes_ += member.name.size() + sizeof(wire::Member);
  }
  record.undispatched -= tensor_count;
  if (record.undispatched > 0) return;
  record.phase = Phase::kIdle;
  ReleaseIfUnused(index);
}

std::optional<std::uint32_t> Coordinator::NewId(Index index) {
  if (records_[index].transient || options_.intern_capacity == 0) return std::nullopt;
  if (by_id_.size() < options_.intern_capacity) {
    by_id_.push_back(index);
    return static_cast<std::uint32_t>(by_id_.size() - 1);
  }
  // Full. With an epoch behind us that some rank still speaks in, wait; this name stays without id.
  if (!previous_alive_) Building().starts_epoch = true;
  return std::nullopt;
}

wire::Decide& Coordinator::Building() {
  if (!building_) {
    building_.emplace();
    building_->generation = generation_;
    building_->number = ++last_decision_;
    building_bytes_ = 0;
  }
  return *building_;
}

void Coordinator::CutDecision() {
  decisions_.push_back(std::move(*building_));
  building_.reset();
  if (decisions_.back().starts_epoch) StartEpoch();
}

std::vector<wire::Decide> Coordinator::TakeDecisions() { return std::exchange(decisions_, {}); }

}  // namespace hvl::plan
