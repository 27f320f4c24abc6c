#include "csrc/plan/participant.h"

#include <algorithm>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/plan/frame_rules.h"

namespace hvl::plan {
namespace {

std::size_t FrameBytes(const wire::Fresh& fresh) {
  constexpr std::size_t kFixedBytes = 32;
  constexpr std::size_t kTensorBytes = 32;  // enough for cutting; Encode checks the real limit
  constexpr std::size_t kDimBytes = 4;
  return kFixedBytes + fresh.signature.name.size() + fresh.site.size() +
         kTensorBytes * fresh.signature.tensors.size() + kDimBytes * fresh.first_dims.size() +
         kDimBytes * fresh.signature.ranks.size();
}

}  // namespace

Participant::Index Participant::FindOrAdd(ProcessSetId set, const std::string& name) {
  const std::optional<Index> found = records_.Find(set, name);
  return found ? *found : records_.Add(set, name);
}

/// The record of the signature's name. What comes again is found without looking for the name.
Participant::Index Participant::IndexOf(const SharedSignature& signature) {
  const Index hint = signature.hint();
  if (hint < records_.bound() && records_[hint].agreed.IsCopyOf(signature)) return hint;
  const Index index = FindOrAdd(OwnerOf(*signature), signature->name);
  signature.SetHint(index);
  return index;
}

void Participant::ReleaseIfUnused(Index index) {
  const Record& record = records_[index];
  if (!record.in_flight && !record.id && record.owed.empty()) records_.Remove(index);
}

Status Participant::LeftError(ProcessSetId set, const std::string& name) const {
  const ProcessSet* const known = sets_.Find(set);
  if (known != nullptr && !known->members.Contains(*departed_)) {
    return {StatusCode::kAborted,
            Format("rank {} has left (shutdown), and after that nothing is agreed on any more, not "
                   "even in a process set without it: tensor '{}'{} cannot run. Let all ranks shut "
                   "down together",
                   *departed_, name, sets_.Suffix(set)),
            *departed_};
  }
  return {
      StatusCode::kAborted,
      Format("rank {} has left (shutdown) and tensor '{}'{} was waiting for it: every rank must "
             "submit the same operations; with uneven data, let all ranks run the same number "
             "of steps, or see join()",
             *departed_, name, sets_.Suffix(set)),
      *departed_};
}

void Participant::Finish(Index index, const Status& status, Effects& effects) {
  Record& record = records_[index];
  effects.finish.push_back({record.ticket, status});
  record.unsent = false;
  NoteEnded(index);
  ReleaseIfUnused(index);
}

// ---- submissions

Status Participant::Refusal(const Submission& submission) const {
  const wire::Signature& signature = *submission.signature;
  const auto refuse = [&](std::string_view why) {
    return Status(StatusCode::kInvalidArgument,
                  Format("{} '{}': {}", OpKindName(signature.kind), signature.name, why));
  };
  if (signature.kind == OpKind::kProcessSet && !signature.ranks.empty() &&
      (signature.ranks.front() < 0 || signature.ranks.back() >= size_)) {
    return refuse(
        Format("the ranks of a process set are 0 to {}, not {}", size_ - 1,
               signature.ranks.front() < 0 ? signature.ranks.front() : signature.ranks.back()));
  }
  const ProcessSetId set = OwnerOf(signature);
  if (set != kWorldSet) {
    const ProcessSet* const known = sets_.Find(set);
    if (known == nullptr) return refuse(Format("process set {} does not exist", set));
    if (!known->members.Contains(rank_)) {
      return refuse(Format("rank {} is not a member of process set {} ({})", rank_, set,
                           known->members.ToString()));
    }
    if (known->closing) return refuse(Format("process set {} is being removed", set));
  } else if (join_) {
    return refuse(Format("rank {} has joined; it may submit more when join() returns", rank_));
  }
  if (signature.kind != OpKind::kAlltoall) return Status::Ok();
  const std::size_t ranks = sets_.Find(set)->count();
  if (ranks > wire::kMaxAlltoallRanks || submission.first_dims.size() > wire::kMaxFirstDims) {
    return refuse(
        Format("{} tensors between {} ranks are too many for one alltoall; the most are "
               "{} ranks, and {} divided by the ranks tensors",
               signature.tensors.size(), ranks, wire::kMaxAlltoallRanks, wire::kMaxFirstDims));
  }
  return Status::Ok();
}

/// A join stands for everything that this rank does not submit from now on; so do the failures
/// before it, which are of operations that it would have submitted.
void Participant::NoteInFlight(Index index) {
  const wire::Signature& signature = records_[index].signature();
  if (signature.kind == OpKind::kJoin) {
    join_ = index;
    DropOwed(kWorldSet);
    sets_.Find(kWorldSet)->owes_round_error = false;
  } else if (signature.kind == OpKind::kProcessSet && signature.ranks.empty()) {
    if (ProcessSet* const set = sets_.Find(signature.process_set)) set->closing = true;
  }
}

/// It has run or failed.
void Participant::NoteEnded(Index index) {
  Record& record = records_[index];
  record.in_flight = false;
  record.first_dims.clear();
  record.dispatched.clear();
  if (join_ == index) join_.reset();
  if (block_ && block_->operation == index) block_.reset();
  const wire::Signature& signature = record.signature();
  if (signature.kind == OpKind::kProcessSet && signature.ranks.empty()) {
    if (ProcessSet* const set = sets_.Find(signature.process_set)) set->closing = false;
  }
}

void Participant::DropOwed(ProcessSetId set) {
  if (owed_count_ == 0) return;
  for (Index index = 0; index < records_.bound(); ++index) {
    if (records_[index].set != set || records_[index].owed.empty()) continue;
    owed_count_ -= records_[index].owed.size();
    records_[index].owed.clear();
    ReleaseIfUnused(index);
  }
}

void Participant::Submit(Submission&& submission, TimePoint now, Effects& effects) {
  const std::string& name = submission.signature->name;
  const OpKind kind = submission.signature->kind;
  const ProcessSetId set = OwnerOf(*submission.signature);
  if (set != kWorldSet || join_ || !wire::HasTensors(kind) || kind == OpKind::kAlltoall) {
    if (Status refusal = Refusal(submission); !refusal.ok()) {
      effects.finish.push_back({submission.ticket, std::move(refusal)});
      return;
    }
  }
  if (HasRound(kind, submission.transient) && FailsWithRound(set, submission, effects)) return;
  const Index index = IndexOf(submission.signature);
  // A thread that is blocked submits nothing: so it was not the only one, or is blocked no more.
  if (block_ && (block_->alone || submission.transient || block_->operation == index)) {
    NoteUnblocked();
  }
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
    effects.finish.push_back({submission.ticket, LeftError(set, name)});
    ReleaseIfUnused(index);
    return;
  }
  record.as_agreed = record.id && record.agreed == submission.signature;
  if (record.as_agreed) {
    record.agreed = std::move(submission.signature);  // equal; the next one will be this very one
  } else {
    if (Status status = wire::CheckSignature(*submission.signature); !status.ok()) {
      effects.finish.push_back({submission.ticket, std::move(status)});
      ReleaseIfUnused(index);
      return;
    }
    record.proposal = std::move(submission.signature);
  }
  const std::size_t tensor_count = record.signature().tensors.size();
  HVL_CHECK(
      submission.first_dims.size() == AnnouncedDims(record.signature(), sets_.Find(set)->count()),
      "an allgather has one first dimension per tensor, an alltoall one for each rank");
  record.in_flight = true;
  record.unsent = true;
  record.transient = submission.transient;
  record.ticket = submission.ticket;
  record.order = next_order_++;
  record.first_dims = std::move(submission.first_dims);
  record.site = std::move(submission.site);
  record.undispatched = std::max<std::size_t>(tensor_count, 1);
  record.awaited.reset();
  if (tensor_count == 0) NoteInFlight(index);
  if (frozen_) return SubmitFrozen(index, now, effects);
  burst_.push_back(index);
}

wire::Announce Participant::NewAnnouncement() {
  acknowledge_ = false;
  wire::Announce announce;
  announce.generation = generation_;
  announce.epoch = epoch_;
  announce.acknowledged = last_decide_;
  announce.blocked = BlockedNow();
  return announce;
}

std::optional<wire::Announce> Participant::TakeAcknowledgement() {
  if (!acknowledge_ || frozen_) return std::nullopt;
  return NewAnnouncement();
}

std::vector<wire::Announce> Participant::TakeAnnouncements() {
  if (frozen_) return {};
  announces_ = false;
  if (burst_.empty()) return {};
  std::vector<std::uint32_t> ids;
  std::vector<wire::Fresh> news;
  for (const Index index : burst_) {
    // A failure may have ended it since (and the name may be in the burst again): skip those.
    Record& record = records_[index];
    if (!record.unsent) continue;
    record.unsent = false;
    // An epoch may have ended since it was submitted: then `agreed` has no id any more.
    if (record.as_agreed && record.id) {
      ids.push_back(*record.id);
    } else {
      news.push_back({record.signature(), record.first_dims, record.transient, record.site});
    }
  }
  burst_.clear();

  std::vector<wire::Announce> announcements = {NewAnnouncement()};
  AnnounceKnown(std::move(ids), announcements);
  std::size_t frame_bytes = 0;
  for (wire::Fresh& fresh : news) {
    frame_bytes += FrameBytes(fresh);
    if (frame_bytes > kFrameBytes && !announcements.back().fresh.empty()) {
      announcements.push_back(NewAnnouncement());
      frame_bytes = FrameBytes(fresh);
    }
    announcements.back().fresh.push_back(std::move(fresh));
  }
  return announcements;
}

void Participant::AnnounceKnown(std::vector<std::uint32_t> ids,
                                std::vector<wire::Announce>& announcements) {
  constexpr std::size_t kMostDims = kFrameBytes / 10;  // the longest take 10 bytes
  std::sort(ids.begin(), ids.end());
  for (const std::uint32_t id : ids) {
    const std::vector<std::int64_t>& dims = records_[by_id_[id]].first_dims;
    std::size_t filled = announcements.back().known_first_dims.size();
    if (filled > 0 && filled + dims.size() > kMostDims) announcements.push_back(NewAnnouncement());
    wire::Announce& announce = announcements.back();
    if (!announce.known.empty() &&
        announce.known.back().first + announce.known.back().count == id) {
      ++announce.known.back().count;
    } else {
      announce.known.push_back({id, 1});
    }
    announce.known_first_dims.insert(announce.known_first_dims.end(), dims.begin(), dims.end());
  }
}

// ---- decisions

Status Participant::Apply(const wire::Decide& decide, TimePoint now, Effects& effects) {
  if (decide.number != last_decide_ + 1) {
    return Nonsense(Format("decision {} came after decision {}", decide.number, last_decide_));
  }
  last_decide_ = decide.number;
  if (!decide.batches.empty() && decide.first_sequence != last_sequence_ + 1) {
    return Nonsense(Format("batch {} came after batch {}", decide.first_sequence, last_sequence_));
  }
  if (departed_) return Status::Ok();  // nothing that was decided since can run
  const bool decides = !decide.batches.empty() || !decide.failures.empty() || decide.starts_epoch ||
                       decide.departure;
  if (frozen_ && decides) return Nonsense("something is decided while a plan is frozen");
  for (const wire::DecidedBatch& batch : decide.batches) {
    HVL_RETURN_IF_ERROR(ApplyBatch(batch, effects));
  }
  for (const wire::Failure& failure : decide.failures) {
    HVL_RETURN_IF_ERROR(ApplyFailure(failure, effects));
  }
  if (decide.freeze) HVL_RETURN_IF_ERROR(ApplyFreeze(*decide.freeze, now, effects));
  if (decide.stop) HVL_RETURN_IF_ERROR(ApplyStop(*decide.stop));
  if (decide.thaw) HVL_RETURN_IF_ERROR(ApplyThaw(*decide.thaw, effects));
  if (decide.starts_epoch) StartEpoch();
  if (decide.departure) return Depart(*decide.departure, effects);
  return Status::Ok();
}

void Participant::StartEpoch() {
  ++epoch_;
  for (const Index index : by_id_) {
    if (index == kNoIndex) continue;
    Record& record = records_[index];
    record.id.reset();
    ReleaseIfUnused(index);
  }
  by_id_.clear();
}

Status Participant::Depart(const wire::Departure& departure, Effects& effects) {
  if (departed_ || departure.rank == rank_) return Status::Ok();
  departed_ = departure.rank;
  effects.over = true;
  if (sets_.LastSequenceWith(departure.rank) > departure.batches_finished) {
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
    Finish(index, LeftError(records_[index].set, records_.name(index)), effects);
  }
  burst_.clear();
  StartEpoch();  // the ids are of no more use
  return Status::Ok();
}

/// No thaw can be agreed on any more. What rank 0 has finished, all ranks have started. If it has
/// begun nothing more, no rank has passed the gate of a later bucket.
Status Participant::DepartCoordinator(std::uint64_t finished, std::uint64_t begun,
                                      Effects& effects) {
  if (frozen_ && !departed_) {
    if (begun == finished) {
      std::uint64_t started = frozen_->started;
      while (started > 0 && frozen_->base + frozen_->counts.Batches(started) > finished) --started;
      if (frozen_->started - started > frozen_->buckets.size()) {
        return Nonsense(Format("it leaves after batch {}, others have run more", finished));
      }
      HVL_RETURN_IF_ERROR(Withdraw(started, effects));
    }
    Unfreeze();
  }
  return Depart({0, finished}, effects);
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
