#include "csrc/plan/participant.h"

#include <algorithm>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/plan/frame_rules.h"

namespace hvl::plan {
namespace {

// Failures of operations that this rank never submitted; far beyond any program that recovers.
constexpr std::size_t kMaxOwed = 65536;

std::size_t FrameBytes(const wire::Fresh& fresh) {
  constexpr std::size_t kFixedBytes = 32;
  constexpr std::size_t kTensorBytes = 32;  // enough for cutting; Encode checks the real limit
  return kFixedBytes + fresh.signature.name.size() + kTensorBytes * fresh.signature.tensors.size();
}

}  // namespace

Participant::Index Participant::FindOrAdd(const std::string& name) {
  const std::optional<Index> found = records_.Find(name);
  return found ? *found : records_.Add(name);
}

void Participant::ReleaseIfUnused(Index index) {
  const Record& record = records_[index];
  if (!record.in_flight && !record.id && record.owed.empty()) records_.Remove(index);
}

Status Participant::LeftError(const std::string& name) const {
  return {StatusCode::kAborted,
          Format("rank {} has left (shutdown) and tensor '{}' was waiting for it: every rank must "
                 "submit the same operations; with uneven data, let all ranks run the same number "
                 "of steps",
                 *departed_, name),
          *departed_};
}

void Participant::Finish(Index index, const Status& status, Effects& effects) {
  Record& record = records_[index];
  effects.finish.push_back({record.ticket, status});
  record.in_flight = false;
  record.unsent = false;
  record.first_dims.clear();
  record.dispatched.clear();
  ReleaseIfUnused(index);
}

void Participant::Submit(Submission submission, Effects& effects) {
  const std::string& name = submission.signature.name;
  const Index index = FindOrAdd(name);
  Record& record = records_[index];
  HVL_CHECK(!record.in_flight, Format("operation '{}' is in flight already", name));
  if (!record.owed.empty()) {
    effects.finish.push_back({submission.ticket, std::move(record.owed.front())});
    record.owed.pop_front();
    --owed_count_;
    ReleaseIfUnused(index);
    return;
  }
  if (departed_) {
    effects.finish.push_back({submission.ticket, LeftError(name)});
    ReleaseIfUnused(index);
    return;
  }
  record.as_agreed = record.id && record.agreed == submission.signature;
  if (!record.as_agreed) {
    if (Status status = wire::CheckSignature(submission.signature); !status.ok()) {
      effects.finish.push_back({submission.ticket, std::move(status)});
      ReleaseIfUnused(index);
      return;
    }
    record.proposal = std::move(submission.signature);
  }
  const std::size_t tensor_count = record.signature().tensors.size();
  HVL_CHECK(submission.first_dims.size() ==
                (record.signature().kind == OpKind::kAllgather ? tensor_count : 0),
            "an allgather has one first dimension per tensor");
  record.in_flight = true;
  record.unsent = true;
  record.transient = submission.transient;
  record.ticket = submission.ticket;
  record.order = next_order_++;
  record.first_dims = std::move(submission.first_dims);
  record.undispatched = std::max<std::size_t>(tensor_count, 1);
  burst_.push_back(index);
}

wire::Announce Participant::NewAnnouncement() {
  acknowledge_ = false;
  wire::Announce announce;
  announce.generation = generation_;
  announce.epoch = epoch_;
  announce.acknowledged = last_decide_;
  return announce;
}

std::optional<wire::Announce> Participant::TakeAcknowledgement() {
  if (!acknowledge_) return std::nullopt;
  return NewAnnouncement();
}

std::vector<wire::Announce> Participant::TakeAnnouncements() {
  std::vector<wire::Announce> announcements;
  if (burst_.empty()) return announcements;
  announcements.push_back(NewAnnouncement());
  std::vector<std::uint32_t> ids;
  std::size_t frame_bytes = 0;
  for (const Index index : burst_) {
    // A failure may have ended it since (and the name may be in the burst again): skip those.
    Record& record = records_[index];
    if (!record.unsent) continue;
    record.unsent = false;
    // An epoch may have ended since it was submitted: then `agreed` has no id any more.
    if (record.as_agreed && record.id) {
      ids.push_back(*record.id);
      continue;
    }
    wire::Fresh fresh{record.signature(), record.first_dims, record.transient};
    frame_bytes += FrameBytes(fresh);
    if (frame_bytes > kFrameBytes && !announcements.back().fresh.empty()) {
      announcements.push_back(NewAnnouncement());
      frame_bytes = FrameBytes(fresh);
    }
    announcements.back().fresh.push_back(std::move(fresh));
  }
  burst_.clear();

  std::sort(ids.begin(), ids.end());
  wire::Announce& first = announcements.front();
  for (const std::uint32_t id : ids) {
    if (!first.known.empty() && first.known.back().first + first.known.back().count == id) {
      ++first.known.back().count;
    } else {
      first.known.push_back({id, 1});
    }
    const auto& dims = records_[by_id_[id]].first_dims;
    first.known_first_dims.insert(first.known_first_dims.end(), dims.begin(), dims.end());
  }
  return announcements;
}

Status Participant::Apply(const wire::Decide& decide, Effects& effects) {
  if (decide.number != last_decide_ + 1) {
    return Nonsense(Format("decision {} came after decision {}", decide.number, last_decide_));
  }
  last_decide_ = decide.number;
  if (!decide.batches.empty() && decide.first_sequence != last_sequence_ + 1) {
    return Nonsense(Format("batch {} came after batch {}", decide.first_sequence, last_sequence_));
  }
  if (departed_) return Status::Ok();  // nothing that was decided since can run
  for (const wire::DecidedBatch& batch : decide.batches) {
    HVL_RETURN_IF_ERROR(ApplyBatch(batch, effects));
  }
  for (const wire::Failure& failure : decide.failures) {
    HVL_RETURN_IF_ERROR(ApplyFailure(failure, effects));
  }
  if (decide.starts_epoch) StartEpoch();
  if (decide.departure) return Depart(*decide.departure, effects);
  return Status::Ok();
}

Status Participant::ApplyBatch(const wire::DecidedBatch& decided, Effects& effects) {
  Assembly assembly{.decided = decided, .batch = {}, .key = {}, .next_dim = 0};
  assembly.batch.sequence = ++last_sequence_;
  for (const wire::Member& member : decided.members) {
    HVL_RETURN_IF_ERROR(ApplyMember(member, assembly));
  }
  if (assembly.next_dim != decided.first_dims.size()) {
    return Nonsense("a batch with too many dimensions");
  }
  effects.run.push_back(std::move(assembly.batch));
  return Status::Ok();
}

Status Participant::ApplyMember(const wire::Member& member, Assembly& assembly) {
  for (std::uint32_t offset = 0; offset < member.count; ++offset) {
    HVL_ASSIGN_OR_RETURN(const Index index, Resolve(member, offset));
    Record& record = records_[index];
    HVL_RETURN_IF_ERROR(AppendTensors(record, member.range, assembly));
    if (record.undispatched > 0) continue;
    // Agreed on: from now on the id means this signature.
    if (!record.as_agreed) record.agreed = std::move(record.proposal);
    record.in_flight = false;
    record.first_dims.clear();
    record.dispatched.clear();
    ReleaseIfUnused(index);
  }
  return Status::Ok();
}

Result<Participant::Index> Participant::Resolve(const wire::Member& member, std::uint32_t offset) {
  std::optional<Index> index;
  if (member.name.empty()) {
    const std::uint64_t id = std::uint64_t{*member.id} + offset;
    if (id >= by_id_.size()) return Nonsense(Format("id {} of {}", id, by_id_.size()));
    index = by_id_[static_cast<std::size_t>(id)];
  } else {
    index = records_.Find(member.name);
    if (!index) return Nonsense(Format("'{}' was never announced", member.name));
  }
  Record& record = records_[*index];
  if (!record.in_flight || record.unsent) {
    return Nonsense(Format("'{}' was not announced", records_.name(*index)));
  }
  if (!member.name.empty() && member.id) {
    if (record.id || *member.id != by_id_.size()) {
      return Nonsense(
          Format("id {} for '{}', expected {}", *member.id, member.name, by_id_.size()));
    }
    record.id = member.id;
    by_id_.push_back(*index);
  }
  return *index;
}

Status Participant::AppendTensors(Record& record,
                                  const std::optional<wire::Member::TensorRange>& range,
                                  Assembly& assembly) {
  const std::string& name = record.signature().name;
  const std::uint64_t total = std::max<std::size_t>(record.signature().tensors.size(), 1);
  const std::uint64_t first = range ? range->first_tensor : 0;
  const std::uint64_t count = range ? range->tensor_count : total;
  if (count == 0 || first + count > total) {
    return Nonsense(Format("tensors {} to {} of {} in '{}'", first, first + count, total, name));
  }
  if (record.undispatched < count || (!range && record.undispatched != total)) {
    return Nonsense(Format("'{}' runs twice", name));
  }
  if (range && record.dispatched.empty()) record.dispatched.resize(total);
  for (std::uint64_t i = first; i < first + count; ++i) {
    if (range) {
      if (record.dispatched[i]) return Nonsense(Format("tensor {} of '{}' runs twice", i, name));
      record.dispatched[i] = true;
    }
    HVL_RETURN_IF_ERROR(AppendTensor(record, i, assembly));
  }
  record.undispatched -= count;
  return Status::Ok();
}

Status Participant::AppendTensor(Record& record, std::size_t tensor_index, Assembly& assembly) {
  const wire::Signature& signature = record.signature();
  const bool barrier = signature.tensors.empty();
  const DType dtype = barrier ? DType::kUint8 : signature.tensors[tensor_index].dtype;
  Batch& batch = assembly.batch;
  if (batch.entries.empty()) {
    assembly.key = KeyOf(signature, dtype);
    batch.spec.kind = signature.kind;
    batch.spec.process_set = signature.process_set;
    batch.spec.reduce_op = signature.reduce_op;
    batch.spec.prescale = signature.prescale;
    batch.spec.postscale = signature.postscale;
    batch.spec.root_rank = signature.root_rank;
    batch.dtype = dtype;
  } else if (barrier || assembly.key != KeyOf(signature, dtype)) {
    return Nonsense(Format("'{}' is fused with what it cannot share", signature.name));
  }
  BatchEntry entry{record.ticket, static_cast<std::uint32_t>(tensor_index), {}};
  if (signature.kind == OpKind::kAllgather) {
    const auto& dims = assembly.decided.first_dims;
    const auto ranks = static_cast<std::size_t>(size_);
    if (dims.size() - assembly.next_dim < ranks) return Nonsense("a batch with too few dimensions");
    const auto begin = dims.begin() + static_cast<std::ptrdiff_t>(assembly.next_dim);
    entry.first_dims.assign(begin, begin + size_);
    assembly.next_dim += ranks;
  }
  batch.entries.push_back(std::move(entry));
  return Status::Ok();
}

Status Participant::ApplyFailure(const wire::Failure& failure, Effects& effects) {
  const std::optional<Index> found = records_.Find(failure.name);
  if (found && records_[*found].in_flight) {
    // Also if it is not announced yet: it belongs to the failed instance, because the coordinator
    // counts everything that this rank announces from now on to the next one.
    if (!records_[*found].dispatched.empty()) {
      return Nonsense(Format("'{}' fails after it has begun", failure.name));
    }
    acknowledge_ = acknowledge_ || records_[*found].unsent;
    Finish(*found, failure.status, effects);
    return Status::Ok();
  }
  if (owed_count_ == kMaxOwed) {
    return {StatusCode::kResourceExhausted,
            Format("{} operations have failed that rank {} never submitted; the ranks do not run "
                   "the same program",
                   owed_count_, rank_),
            rank_};
  }
  records_[FindOrAdd(failure.name)].owed.push_back(failure.status);
  ++owed_count_;
  acknowledge_ = true;
  return Status::Ok();
}

void Participant::StartEpoch() {
  ++epoch_;
  for (const Index index : by_id_) {
    Record& record = records_[index];
    record.id.reset();
    ReleaseIfUnused(index);
  }
  by_id_.clear();
}

Status Participant::Depart(const wire::Departure& departure, Effects& effects) {
  if (departed_ || departure.rank == rank_) return Status::Ok();
  departed_ = departure.rank;
  if (last_sequence_ > departure.batches_finished) {
    return {StatusCode::kAborted,
            Format("rank {} has left (shutdown) while operations that all ranks had submitted were "
                   "still to run: synchronize() them before shutdown()",
                   departure.rank),
            departure.rank};
  }
  std::vector<std::pair<std::uint64_t, Index>> pending;
  for (Index index = 0; index < records_.bound(); ++index) {
    if (records_[index].in_flight) pending.emplace_back(records_[index].order, index);
  }
  std::sort(pending.begin(), pending.end());
  for (const auto& [order, index] : pending) {
    Finish(index, LeftError(records_.name(index)), effects);
  }
  burst_.clear();
  StartEpoch();  // the ids are of no more use
  return Status::Ok();
}

std::string Participant::PendingText() const {
  constexpr std::size_t kMaxNames = 3;
  std::vector<std::pair<std::uint64_t, Index>> pending;
  for (Index index = 0; index < records_.bound(); ++index) {
    if (records_[index].in_flight) pending.emplace_back(records_[index].order, index);
  }
  std::sort(pending.begin(), pending.end());
  std::string text;
  for (std::size_t i = 0; i < pending.size() && i < kMaxNames; ++i) {
    text += Format("{}'{}'", i == 0 ? "" : ", ", records_.name(pending[i].second));
  }
  if (pending.size() > kMaxNames) text += Format(" and {} more", pending.size() - kMaxNames);
  return text;
}

}  // namespace hvl::plan
