#include "csrc/plan/coordinator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/plan/frame_rules.h"

namespace hvl::plan {
namespace {

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

/// What a tuner may do to the buckets: never beyond the fusion threshold.
std::vector<TunedSize> TunedBuckets(const Options& options) {
  const auto size = [&options](std::string name, std::size_t bytes, std::int64_t least,
                               std::int64_t most) {
    const auto threshold =
        std::max(static_cast<std::int64_t>(options.fusion_threshold_bytes), std::int64_t{1});
    most = std::min(most, threshold);
    least = std::min(least, most);
    return TunedSize{std::move(name), std::clamp(static_cast<std::int64_t>(bytes), least, most),
                     least, most};
  };
  return {size("bucket", options.bucket_bytes, std::int64_t{256} << 10, std::int64_t{256} << 20),
          size("edge", options.edge_bucket_bytes, std::int64_t{64} << 10, std::int64_t{16} << 20)};
}

}  // namespace

Coordinator::Coordinator(int size, std::uint64_t generation, const Options& options)
    : size_(size),
      generation_(generation),
      options_(options),
      sets_(size),
      batcher_(options.fusion_threshold_bytes),
      joined_(size),
      ids_(size, options.intern_capacity),
      failed_(size),
      blocks_(static_cast<std::size_t>(size)),
      freeze_after_(static_cast<std::uint64_t>(std::max(options.freeze_after, 0))) {
  if (options.tune) tuner_.emplace(TunedBuckets(options), options.tuner);
}

// ---- announcements

Status Coordinator::OnAnnounce(int from, wire::Announce&& announce, TimePoint now,
                               Effects& effects) {
  if (departed_) return Status::Ok();  // its rank hears of the departure and fails by itself
  if (plan_) return Hold(from, std::move(announce), now);
  HVL_RETURN_IF_ERROR(ids_.Enter(from, announce.epoch));
  ForgetEpoch();
  std::vector<Index> closed;
  HVL_RETURN_IF_ERROR(failed_.Acknowledge(from, announce.acknowledged, last_decision_, closed));
  CloseFailures(closed);
  HVL_RETURN_IF_ERROR(OnKnown(from, announce, now, effects));
  for (wire::Fresh& fresh : announce.fresh) {
    HVL_RETURN_IF_ERROR(OnFresh(from, std::move(fresh), now, effects));
  }
  if (!joined_.empty()) RenewJoin(now);
  NoteBlocked(from, announce.blocked, effects);
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
      if (record.set != kWorldSet) HVL_RETURN_IF_ERROR(CheckMember(record.set, from));
      if (dims.size() < record.dims_per_rank) return Nonsense("too few first dimensions");
      const std::span<const std::int64_t> first_dims = dims.first(record.dims_per_rank);
      dims = dims.subspan(record.dims_per_rank);
      if (BelongsToFailed(index, from)) continue;
      HVL_RETURN_IF_ERROR(AddRank(index, from, now));
      if (tracing_) NoteReady(index, record.agreed.kind, from, effects);
      if (!first_dims.empty()) NoteFirstDims(index, record.agreed.kind, from, first_dims);
      if (!record.proposals.empty()) CheckMismatch(index, now);
      if (IsComplete(record)) Complete(index, effects);
    }
  }
  if (!dims.empty()) return Nonsense("too many first dimensions");
  return Status::Ok();
}

Status Coordinator::OnFresh(int from, wire::Fresh&& fresh, TimePoint now, Effects& effects) {
  HVL_RETURN_IF_ERROR(CheckFresh(from, fresh));
  const OpKind kind = fresh.signature.kind;
  const ProcessSetId set = OwnerOf(fresh.signature);
  if (HasRound(kind, fresh.transient) &&
      failed_.acknowledged(from) < sets_.Find(set)->round_decided) {
    return Status::Ok();  // of a round that has ended, which its rank did not know yet
  }
  const std::optional<Index> found = records_.Find(set, fresh.signature.name);
  const Index index = found ? *found : records_.Add(set, fresh.signature.name);
  Record& record = records_[index];
  if (BelongsToFailed(index, from)) return Status::Ok();
  HVL_RETURN_IF_ERROR(AddRank(index, from, now));
  if (tracing_) NoteReady(index, kind, from, effects);
  record.joins = record.joins || kind == OpKind::kJoin;
  record.transient = record.transient || fresh.transient;
  record.sites.Note(from, fresh.site, size_);
  if (!fresh.first_dims.empty()) NoteFirstDims(index, kind, from, fresh.first_dims);
  NoteProposal(index, from, std::move(fresh.signature));
  if (!record.proposals.empty() || record.sites.differ()) CheckMismatch(index, now);
  if (kind == OpKind::kJoin) OnJoin(index, from, effects);
  if (IsComplete(record)) Complete(index, effects);
  return Status::Ok();
}

void Coordinator::NoteProposal(Index index, int from, wire::Signature&& signature) {
  Record& record = records_[index];
  // Also without an id: the ids may have ended after another rank used one in this instance.
  if (!record.costs.empty() && record.agreed == signature) return;
  const auto same = std::find_if(
      record.proposals.begin(), record.proposals.end(),
      [&signature](const Proposal& proposal) { return proposal.signature == signature; });
  if (same != record.proposals.end()) {
    same->ranks.Insert(from);
  } else {
    record.proposals.push_back({std::move(signature), RankSet(size_)});
    record.proposals.back().ranks.Insert(from);
  }
}

// Participants refuse what is wrong here before they announce it.
Status Coordinator::CheckMember(ProcessSetId set, int from) const {
  const ProcessSet* const known = sets_.Find(set);
  if (known == nullptr) return Nonsense(Format("process set {} does not exist", set));
  if (changing_.contains(set)) return Nonsense(Format("process set {} is being removed", set));
  if (known->members.Contains(from)) return Status::Ok();
  return Nonsense(Format("rank {} is no member of process set {}", from, set));
}

Status Coordinator::CheckFresh(int from, const wire::Fresh& fresh) const {
  const wire::Signature& signature = fresh.signature;
  HVL_RETURN_IF_ERROR(CheckMember(OwnerOf(signature), from));
  const std::size_t ranks = sets_.Find(OwnerOf(signature))->count();
  const std::size_t expected = AnnouncedDims(signature, ranks);
  if (fresh.first_dims.size() != expected) {
    return Nonsense(Format("{} first dimensions of '{}', expected {}", fresh.first_dims.size(),
                           signature.name, expected));
  }
  if (signature.kind == OpKind::kAlltoall && ranks > wire::kMaxAlltoallRanks) {
    return Nonsense(Format("an alltoall of {} ranks", ranks));
  }
  if (!signature.ranks.empty() && signature.ranks.back() >= size_) {
    return Nonsense(Format("rank {} of {} in a process set", signature.ranks.back(), size_));
  }
  return Status::Ok();
}

Status Coordinator::AddRank(Index index, int from, TimePoint now) {
  Record& record = records_[index];
  const ProcessSetId set = record.set;
  if (!joined_.empty() && set == kWorldSet && joined_.ranks().Contains(from)) {
    return Nonsense(Format("'{}' announced by a rank that has joined", records_.name(index)));
  }
  if (record.phase == Phase::kIdle) {
    record.phase = Phase::kWaiting;
    if (record.transient) record.sites.Clear();
    record.transient = false;
    record.joins = false;
    record.member_count = set == kWorldSet ? size_ : sets_.Find(set)->members.count();
    record.announced = RankSet(size_);
    record.proposals.clear();
    record.first_dims.clear();
    record.first_announced = now;
    LinkNewest(index);
  }
  if (!record.announced.Insert(from)) {
    return Nonsense(Format("'{}' announced twice", records_.name(index)));
  }
  return Status::Ok();
}

void Coordinator::NoteReady(Index index, OpKind kind, int from, Effects& effects) const {
  effects.ready.push_back({kind, records_.name(index), from, records_[index].set});
}

// ---- join

/// It stands for everything of the world that this rank does not announce until all have joined:
/// what waits for it alone may run, and failures that it has not heard of do not concern it.
void Coordinator::OnJoin(Index index, int from, Effects& effects) {
  join_ = index;
  joined_.Add(from, index);
  std::vector<Index> closed;
  failed_.Forgive(from, [this](Index record) { return records_[record].set == kWorldSet; }, closed);
  CloseFailures(closed);
  std::vector<Index> complete;
  for (Index other = oldest_; other != kNoIndex; other = records_[other].newer) {
    if (other != index && IsComplete(records_[other])) complete.push_back(other);
  }
  for (const Index other : complete) Complete(other, effects);
}

void Coordinator::EndJoin(Index index) {
  joined_.End(index);
  if (join_ == index) join_ = kNoIndex;
}

/// A join waits for as long as the other ranks have work: it is not stalled while they announce.
void Coordinator::RenewJoin(TimePoint now) {
  if (join_ == kNoIndex) return;
  Unlink(join_);
  records_[join_].first_announced = now;
  LinkNewest(join_);
}

// ---- what is complete

/// Each rank gives one number per tensor (allgather), or one per tensor and receiver (alltoall).
void Coordinator::NoteFirstDims(Index index, OpKind kind, int from,
                                std::span<const std::int64_t> dims) {
  Record& record = records_[index];
  const auto ranks = static_cast<std::size_t>(record.member_count);
  if (record.first_dims.empty()) record.first_dims.resize(dims.size() * ranks);
  if (record.first_dims.size() != dims.size() * ranks) return;  // a mismatch, found elsewhere
  const std::size_t width = kind == OpKind::kAlltoall ? ranks : 1;
  const ProcessSetId set = record.set;
  const int position = set == kWorldSet ? from : sets_.Find(set)->members.CountBelow(from);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::size_t row = i / width * ranks + static_cast<std::size_t>(position);
    record.first_dims[row * width + i % width] = dims[i];
  }
}

RankSet Coordinator::Missing(const Record& record) const {
  const ProcessSetId set = record.set;
  RankSet missing = set == kWorldSet ? record.announced.Complement() : sets_.Find(set)->members;
  if (set != kWorldSet) missing.EraseAll(record.announced);
  // A join stands for everything of the world but another join.
  if (set == kWorldSet && !record.joins) missing.EraseAll(joined_.ranks());
  return missing;
}

void Coordinator::Complete(Index index, Effects& effects) {
  Record& record = records_[index];
  if (!record.proposals.empty()) {
    const Proposal& first = record.proposals.front();
    const bool all = first.ranks.count() == record.announced.count();
    if (record.proposals.size() > 1 || !all) return FailMismatch(index, effects);
  }
  if (SitesDisagree(record)) return FailMismatch(index, effects);
  record.lacks_joined = record.announced.count() < record.member_count;
  const bool is_new = !record.proposals.empty();
  const wire::Signature& signature = is_new ? record.proposals.front().signature : record.agreed;
  if (record.lacks_joined || signature.kind == OpKind::kProcessSet) {
    Status refusal = Refusal(index, signature);
    if (!refusal.ok()) return Fail(index, std::move(refusal), effects);
  }
  if (record.transient && record.sites.differ()) WarnOfSites(index, effects);
  record.redefined = is_new && record.id.has_value();
  if (is_new) AdoptProposal(index);
  MakeReady(index);
}

Status Coordinator::Refusal(Index index, const wire::Signature& signature) const {
  if (signature.kind == OpKind::kProcessSet) {
    HVL_RETURN_IF_ERROR(RegistrationFault(signature));
  }
  if (!records_[index].lacks_joined || signature.kind == OpKind::kAllreduce) return Status::Ok();
  RankSet joined = joined_.ranks();
  joined.EraseAll(records_[index].announced);
  return JoinedError(signature.name, signature.kind, joined);
}

void Coordinator::AdoptProposal(Index index) {
  Record& record = records_[index];
  record.agreed = std::move(record.proposals.front().signature);
  record.proposals.clear();
  record.costs.clear();
  for (const wire::TensorSignature& tensor : record.agreed.tensors) {
    record.costs.push_back({KeyOf(record.agreed, tensor.dtype), TensorBytes(tensor)});
  }
  if (record.agreed.tensors.empty()) record.costs.push_back({KeyOf(record.agreed, {}), 0});
  record.dims_per_rank =
      AnnouncedDims(record.agreed, static_cast<std::size_t>(record.member_count));
}

/// Rows of the largest result of a tensor on any rank.
std::uint64_t Coordinator::ResultRows(const Record& record,
                                      std::span<const std::int64_t> dims) const {
  if (record.agreed.kind != OpKind::kAlltoall) return SaturatingSum(dims);
  const auto ranks = static_cast<std::size_t>(record.member_count);
  std::vector<std::int64_t> received(ranks);
  std::uint64_t most = 0;
  for (std::size_t to = 0; to < ranks; ++to) {
    for (std::size_t from = 0; from < ranks; ++from) received[from] = dims[from * ranks + to];
    most = std::max(most, SaturatingSum(received));
  }
  return most;
}

void Coordinator::MakeReady(Index index) {
  Record& record = records_[index];
  Unlink(index);
  record.phase = Phase::kReady;
  record.ready_at = ++ready_count_;
  record.undispatched = record.costs.size();
  if (record.agreed.kind == OpKind::kProcessSet) changing_.insert(record.agreed.process_set);
  if (record.joins) {
    record.first_dims = {joined_.last()};
    EndJoin(index);
  }
  constexpr std::size_t kMemberBytes = 16;
  constexpr std::size_t kDimBytes = 10;
  const std::span<const std::int64_t> dims(record.first_dims);
  const std::size_t width = dims.empty() ? 0 : dims.size() / record.costs.size();
  batcher_.BeginOperation();
  for (std::size_t i = 0; i < record.costs.size(); ++i) {
    std::uint64_t bytes = record.costs[i].bytes;
    std::size_t frame_bytes = kMemberBytes;
    if (!record.id) frame_bytes += records_.name(index).size();
    if (width > 0) {
      bytes = SaturatingProduct(bytes, ResultRows(record, dims.subspan(i * width, width)));
      frame_bytes += kDimBytes * width;
    }
    batcher_.Add({index, static_cast<std::uint32_t>(i)}, record.costs[i].key, bytes, frame_bytes);
  }
}

// ---- ids

std::optional<std::uint32_t> Coordinator::NewId(Index index) {
  const Record& record = records_[index];
  // Known operations are announced before new ones; what a join or the removal of a set follows
  // must be announced before it.
  const OpKind kind = record.agreed.kind;
  if (record.transient || kind == OpKind::kJoin || kind == OpKind::kProcessSet) return std::nullopt;
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

// ---- decisions

void Coordinator::OnBatchFinished(std::uint64_t sequence, TimePoint now, Effects& effects) {
  // While a plan is frozen the participants count batches.
  HVL_CHECK(sequence > finished_ && (sequence <= dispatched_ || plan_),
            Format("batch {} finished after {} of {}", sequence, finished_, dispatched_));
  finished_ = sequence;
  if (departed_) return;
  if (plan_) {
    Tune(now, effects);
  } else {
    Conclude();
  }
  if (obstacle_.empty()) return;
  effects.notices.push_back({LogLevel::kWarning, std::exchange(obstacle_, {})});
}

Status Coordinator::OnDeparture(int rank, std::uint64_t batches_finished, TimePoint now) {
  if (departed_) return Status::Ok();
  const wire::Departure departure{rank, batches_finished};
  if (!plan_) {
    Depart(departure);
    return Status::Ok();
  }
  // Nothing can be said about batches before the plan has thawed. A rank that knew of it has said
  // how far it got.
  if (!plan_->departure) plan_->departure = departure;
  if (!plan_->thawing) BeginThaw(rank, wire::ThawReason::kLeft, now);
  return NoteStopped(rank, 0);
}

void Coordinator::Depart(const wire::Departure& departure) {
  departed_ = true;
  Building().departure = departure;
  CutDecision();
  records_ = {};
  batcher_.Clear();
  mismatched_.clear();
  stall_check_at_.reset();
  kinds_check_at_.reset();
}

void Coordinator::Conclude() {
  // While the data plane is busy let small tensors gather; a full batch need not wait.
  if (plan_) {
    // Nothing is decided but its end.
  } else if (!batcher_.empty() && finished_ >= dispatched_here_) {
    for (const auto& tensors : batcher_.TakeAll()) Dispatch(tensors);
  } else if (batcher_.has_full()) {
    for (const auto& tensors : batcher_.TakeFull()) Dispatch(tensors);
  }
  if (MayFreeze()) Freeze();
  if (building_) CutDecision();
}

void Coordinator::Dispatch(const std::vector<ReadyTensor>& tensors) {
  const Index first = tensors.front().operation;
  const OpKind kind = records_[first].agreed.kind;
  // A message's batches are applied before its failures. Those of before a join or the removal of a
  // set must not seem to be of after it.
  if (!wire::HasTensors(kind) && building_ && !building_->failures.empty()) CutDecision();
  wire::Decide& decide = Building();
  ++dispatched_;
  if (decide.batches.empty()) decide.first_sequence = dispatched_;
  wire::DecidedBatch& batch = decide.batches.emplace_back();
  batch.process_set = records_[first].set;
  const bool runs_here = sets_.Find(batch.process_set)->members.Contains(0);
  if (runs_here) dispatched_here_ = dispatched_;
  if (kind == OpKind::kProcessSet) {
    const wire::Signature& change = records_[first].agreed;
    HVL_CHECK(sets_.Apply(change.process_set, change.ranks), "checked when all had announced it");
    changing_.erase(change.process_set);
  }
  for (std::size_t i = 0; i < tensors.size();) {
    const Index index = tensors[i].operation;
    const std::uint32_t first_tensor = tensors[i].tensor_index;
    std::uint32_t count = 0;
    while (i < tensors.size() && tensors[i] == ReadyTensor{index, first_tensor + count}) {
      ++count;
      ++i;
    }
    AppendMember(batch, index, first_tensor, count);
  }
  if (building_bytes_ > kFrameBytes) CutDecision();
}

void Coordinator::AppendMember(wire::DecidedBatch& batch, Index index, std::uint32_t first_tensor,
                               std::uint32_t tensor_count) {
  Record& record = records_[index];
  if (!record.first_dims.empty()) {
    const std::size_t width = record.first_dims.size() / record.costs.size();
    const std::size_t count = tensor_count * width;
    const auto begin =
        record.first_dims.begin() + static_cast<std::ptrdiff_t>(first_tensor * width);
    batch.first_dims.insert(batch.first_dims.end(), begin,
                            begin + static_cast<std::ptrdiff_t>(count));
    building_bytes_ += count;
  }
  const bool whole = tensor_count == record.costs.size();
  const bool by_id = record.id && !(record.redefined && record.lacks_joined);
  wire::Member* last = batch.members.empty() ? nullptr : &batch.members.back();
  if (whole && by_id && last != nullptr && last->name.empty() && !last->range &&
      *last->id + last->count == *record.id) {
    ++last->count;
  } else {
    wire::Member& member = batch.members.emplace_back();
    if (by_id) {
      member.id = record.id;
    } else {
      member = NewMember(index);
    }
    if (!whole) member.range = {first_tensor, tensor_count};
    building_bytes_ += member.name.size() + sizeof(wire::Member);
  }
  record.undispatched -= tensor_count;
  if (record.undispatched > 0) return;
  record.phase = Phase::kIdle;
  NoteDecided(index);
  ReleaseIfUnused(index);
}

/// With all that a rank needs which does not know the id, or not what it stands for now.
wire::Member Coordinator::NewMember(Index index) {
  Record& record = records_[index];
  wire::Member member;
  member.name = records_.name(index);
  if (!record.id) record.id = NewId(index);
  member.id = record.id;
  if (record.lacks_joined) {
    member.signature = record.agreed;
    building_bytes_ += sizeof(wire::TensorSignature) * record.agreed.tensors.size();
  }
  record.redefined = false;
  return member;
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
  if (decisions_.back().starts_epoch) {
    StartEpoch();
    NoteOther();
  }
}

std::vector<wire::Decide> Coordinator::TakeDecisions() { return std::exchange(decisions_, {}); }

}  // namespace hvl::plan
