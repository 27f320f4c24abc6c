#include "csrc/plan/coordinator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/plan/frame_rules.h"
#include "csrc/plan/mismatch.h"

namespace hvl::plan {
namespace {

// After a mismatch has been seen, wait this long for the ranks that have not submitted the name
// yet, so that the error can tell what each rank has.
constexpr Duration kMismatchGrace = std::chrono::seconds(1);

// Failed instances that some rank has not acknowledged: far beyond what a rank that answers leaves.
constexpr std::size_t kMaxOpenFailures = 65536;

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

}  // namespace

Coordinator::Coordinator(int size, std::uint64_t generation, const Options& options)
    : size_(size),
      generation_(generation),
      options_(options),
      batcher_(options.fusion_threshold_bytes),
      ids_(size, options.intern_capacity),
      failed_(size) {}

// ---- announcements

Status Coordinator::OnAnnounce(int from, wire::Announce&& announce, TimePoint now,
                               Effects& effects) {
  if (departed_) return Status::Ok();  // its rank hears of the departure and fails by itself
  HVL_RETURN_IF_ERROR(ids_.Enter(from, announce.epoch));
  ForgetEpoch();
  std::vector<Index> closed;
  HVL_RETURN_IF_ERROR(failed_.Acknowledge(from, announce.acknowledged, last_decision_, closed));
  CloseFailures(closed);
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
      HVL_ASSIGN_OR_RETURN(const Index index, ids_.Find(announce.epoch, id));
      Record& record = records_[index];
      std::span<const std::int64_t> first_dims;
      if (record.agreed.kind == OpKind::kAllgather) {
        const std::size_t count = record.agreed.tensors.size();
        if (dims.size() < count) return Nonsense("too few first dimensions");
        first_dims = dims.first(count);
        dims = dims.subspan(count);
      }
      if (BelongsToFailed(index, from)) continue;
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
  if (BelongsToFailed(index, from)) return Status::Ok();
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
    ++record.open_failures;
    failed_.Add(index, decide.number, std::move(missing));
    if (failed_.size() > kMaxOpenFailures) {
      const int rank = failed_.SilentRank();
      effects.fatal = Status(
          StatusCode::kResourceExhausted,
          Format("{} operations have failed and rank {} has not heard of one of them: it hangs",
                 failed_.size(), rank),
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

bool Coordinator::BelongsToFailed(Index index, int from) {
  if (records_[index].open_failures == 0) return false;
  std::vector<Index> closed;
  const bool belongs = failed_.Consume(index, from, closed);
  CloseFailures(closed);
  return belongs;
}

void Coordinator::CloseFailures(const std::vector<Index>& records) {
  for (const Index index : records) {
    --records_[index].open_failures;
    ReleaseIfUnused(index);
  }
}

void Coordinator::ReleaseIfUnused(Index index) {
  const Record& record = records_[index];
  if (record.phase == Phase::kIdle && !record.id && !record.has_previous_id &&
      record.open_failures == 0) {
    records_.Remove(index);
  }
}

// ---- ids

std::optional<std::uint32_t> Coordinator::NewId(Index index) {
  if (records_[index].transient) return std::nullopt;
  const std::optional<std::uint32_t> id = ids_.Assign(index);
  // Used up. If an epoch may not start yet, this name stays without an id for now.
  if (!id && ids_.MayStartEpoch()) Building().starts_epoch = true;
  return id;
}

void Coordinator::StartEpoch() {
  for (const Index index : ids_.StartEpoch()) {
    records_[index].id.reset();
    records_[index].has_previous_id = true;
  }
}

void Coordinator::ForgetEpoch() {
  for (const Index index : ids_.TakeForgotten()) {
    records_[index].has_previous_id = false;
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
  std::vector<StalledOperation> warned;
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
      warned.push_back(Stalled(index, now));
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
  if (!warned.empty()) effects.notices.push_back(StallNotice(warned));
  for (const Index index : expired) {
    Fail(index, StallError(Stalled(index, now), options_.stall_shutdown), effects);
  }
}

StalledOperation Coordinator::Stalled(Index index, TimePoint now) const {
  const Record& record = records_[index];
  return {records_.name(index), record.announced, now - record.first_announced};
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
