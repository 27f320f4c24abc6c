// A participant while a plan is frozen: it starts buckets by itself, and stops when anything is not
// as planned. docs/negotiation.md has the whole protocol.
#include <algorithm>
#include <map>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/plan/frame_rules.h"
#include "csrc/plan/participant.h"

namespace hvl::plan {
namespace {

/// A plan is given up when nothing has moved for this part of the stall warning's time; then the
/// negotiation finds out who is missing.
constexpr int kStallParts = 4;

std::string_view ReasonText(wire::ThawReason reason) {
  switch (reason) {
    case wire::ThawReason::kStopped:
      break;
    case wire::ThawReason::kOperation:
      return "submitted an operation that is not in it";
    case wire::ThawReason::kSignature:
      return "changed the signature of an operation";
    case wire::ThawReason::kMissing:
      return "left out an operation";
    case wire::ThawReason::kAwaited:
      return "waited for part of a bucket";
    case wire::ThawReason::kStalled:
      return "saw nothing move for long";
    case wire::ThawReason::kLeft:
      return "shut down";
    case wire::ThawReason::kTuned:
      return "tries other buckets";
  }
  return "stopped";
}

}  // namespace

// ---- freezing

Status Participant::ApplyFreeze(const wire::Freeze& freeze, TimePoint now, Effects& effects) {
  if (frozen_ || freeze.plan != last_plan_ + 1 || freeze.buckets.empty()) {
    return Nonsense(Format("plan {} of {} buckets freezes after plan {}", freeze.plan,
                           freeze.buckets.size(), last_plan_));
  }
  last_plan_ = freeze.plan;
  FrozenPlan plan;
  plan.number = freeze.plan;
  plan.hash = freeze.hash;
  plan.base = last_sequence_;
  plan.counts = BucketCounts(freeze.buckets);
  plan.moved = now;
  Status status = CompileBuckets(freeze, plan);
  if (!status.ok()) return status;
  const std::uint64_t hash = PlanHash(
      freeze.buckets,
      [this](std::uint32_t id) -> const wire::Signature& { return *records_[by_id_[id]].agreed; });
  if (hash != freeze.hash) return Nonsense("a plan that means something else here");
  frozen_ = std::move(plan);
  ++counters_.freezes;
  if (rank_ == 0) {
    effects.notices.push_back({LogLevel::kDebug, Format("plan {} of {} buckets is frozen",
                                                        freeze.plan, freeze.buckets.size())});
  }
  KeepSubmissions(now, effects);
  return Status::Ok();
}

/// Each operation must be there once, whole, within one bucket: otherwise a thaw could cut it.
Status Participant::CompileBuckets(const wire::Freeze& freeze, FrozenPlan& plan) {
  std::map<Index, std::vector<bool>> parts;  // of operations that are spread over batches
  for (std::size_t i = 0; i < freeze.buckets.size(); ++i) {
    FrozenPlan::Bucket& bucket = plan.buckets.emplace_back();
    for (const wire::DecidedBatch& decided : freeze.buckets[i].batches) {
      if (decided.process_set != kWorldSet || !decided.first_dims.empty()) {
        return Nonsense("a plan with more than operations of the world");
      }
      Batch& batch = bucket.batches.emplace_back();
      FusionKey key;
      for (const wire::Member& member : decided.members) {
        HVL_RETURN_IF_ERROR(CompileMember(member, bucket, batch, key, parts));
      }
    }
    bucket.missing = bucket.operations.size();
    for (const Index index : bucket.operations) {
      const std::vector<bool>& seen = parts[index];
      if (std::find(seen.begin(), seen.end(), false) != seen.end()) {
        return Nonsense(Format("'{}' is not whole in its bucket", records_.name(index)));
      }
    }
  }
  return Status::Ok();
}

Status Participant::CompileMember(const wire::Member& member, FrozenPlan::Bucket& bucket,
                                  Batch& batch, FusionKey& key,
                                  std::map<Index, std::vector<bool>>& parts) {
  if (!member.name.empty()) return Nonsense("a plan with new names");
  const std::uint64_t end = std::uint64_t{*member.id} + member.count;
  if (end > by_id_.size()) return Nonsense(Format("id {} of {} in a plan", end - 1, by_id_.size()));
  for (std::uint64_t id = *member.id; id < end; ++id) {
    const Index index = by_id_[static_cast<std::size_t>(id)];
    if (index == kNoIndex || records_[index].set != kWorldSet) {
      return Nonsense(Format("id {} in a plan is not of the world", id));
    }
    const wire::Signature& signature = *records_[index].agreed;
    if (!IsPlannable(signature.kind)) {
      return Nonsense(Format("{} '{}' in a plan", OpKindName(signature.kind), signature.name));
    }
    const std::size_t total = signature.tensors.size();
    const std::uint64_t first = member.range ? member.range->first_tensor : 0;
    const std::uint64_t count = member.range ? member.range->tensor_count : total;
    if (count == 0 || first + count > total) {
      return Nonsense(Format("tensors {} to {} of {} of '{}' in a plan", first, first + count,
                             total, signature.name));
    }
    std::vector<bool>& seen = parts.try_emplace(index, total).first->second;
    const bool begun = std::find(seen.begin(), seen.end(), true) != seen.end();
    if (!begun) bucket.operations.push_back(index);
    for (std::uint64_t i = first; i < first + count; ++i) {
      if (seen[i]) return Nonsense(Format("'{}' is twice in a plan", signature.name));
      seen[i] = true;
    }
    if (!FuseRange(signature, {first, count}, batch, key)) {
      return Nonsense(Format("'{}' is fused with what it cannot share", signature.name));
    }
    batch.entries.push_back(
        {index, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count), {}});
  }
  return Status::Ok();
}

/// What is in flight has been submitted after everything that was decided before the plan, so it is
/// of the plan's first round; the coordinator forgets what it was told of that, and what is under
/// way to it. Anything else in flight is not as planned.
void Participant::KeepSubmissions(TimePoint now, Effects& effects) {
  FrozenPlan& plan = *frozen_;
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    for (const Index index : plan.buckets[i].operations) {
      Record& record = records_[index];
      record.bucket = i;
      if (!record.in_flight || !record.as_agreed) continue;
      record.unsent = true;
      --plan.buckets[i].missing;
      ++plan.ready;
      if (record.awaited) record.awaited = now;
    }
  }
  std::size_t in_flight = 0;
  for (Index index = 0; index < records_.bound(); ++index) {
    const Record& record = records_[index];
    if (!record.in_flight) continue;
    ++in_flight;
    if (record.awaited && record.bucket) NotePatience(now);
  }
  if (in_flight > plan.ready) Stop(wire::ThawReason::kOperation);
  StartBuckets(effects);
}

// ---- while frozen

void Participant::SubmitFrozen(Index index, TimePoint now, Effects& effects) {
  FrozenPlan& plan = *frozen_;
  Record& record = records_[index];
  plan.moved = now;
  if (plan.stopped) {
    // It waits for the thaw, like everything that has not started.
  } else if (!record.bucket) {
    Stop(wire::ThawReason::kOperation);
  } else if (!record.as_agreed) {
    Stop(wire::ThawReason::kSignature);
  } else if (*record.bucket < plan.next) {
    // It comes again, and the round is not through.
    Stop(wire::ThawReason::kMissing);
  } else {
    --plan.buckets[*record.bucket].missing;
    ++plan.ready;
    StartBuckets(effects);
    return;
  }
  burst_.push_back(index);
}

void Participant::StartBuckets(Effects& effects) {
  FrozenPlan& plan = *frozen_;
  while (!plan.stopped && plan.buckets[plan.next].missing == 0) StartBucket(effects);
}

void Participant::StartBucket(Effects& effects) {
  FrozenPlan& plan = *frozen_;
  FrozenPlan::Bucket& bucket = plan.buckets[plan.next];
  std::optional<Gate> gate =
      Gate{plan.number, ++plan.started, BucketHash(plan.hash, plan.next), plan.buckets.size()};
  for (const Batch& planned : bucket.batches) {
    Batch& batch = effects.run.emplace_back(planned);
    batch.sequence = ++last_sequence_;
    batch.gate = std::exchange(gate, std::nullopt);
    for (BatchEntry& entry : batch.entries) {
      entry.ticket = records_[static_cast<Index>(entry.ticket)].ticket;
    }
  }
  sets_.Find(kWorldSet)->last_sequence = last_sequence_;
  for (const Index index : bucket.operations) {
    Record& record = records_[index];
    record.in_flight = false;
    record.unsent = false;
    record.awaited.reset();
  }
  plan.ready -= bucket.operations.size();
  if (plan.ready == 0) plan.patience_ends.reset();
  bucket.missing = bucket.operations.size();
  plan.next = (plan.next + 1) % plan.buckets.size();
  ++counters_.buckets;
}

void Participant::Stop(wire::ThawReason reason) {
  if (frozen_->stopped) return;
  frozen_->stopped = reason;
  tells_stopped_ = true;
}

std::optional<wire::Stopped> Participant::TakeStopped() {
  if (!std::exchange(tells_stopped_, false)) return std::nullopt;
  return wire::Stopped{generation_, frozen_->number, frozen_->started, *frozen_->stopped};
}

void Participant::StopToLeave() {
  if (frozen_ && !departed_) Stop(wire::ThawReason::kLeft);
}

void Participant::NotePatience(TimePoint now) {
  if (!frozen_->patience_ends) frozen_->patience_ends = now + options_.patience;
}

void Participant::BatchFinished(std::uint64_t sequence, TimePoint now) {
  finished_ = sequence;
  if (frozen_) frozen_->moved = now;
}

std::optional<TimePoint> Participant::StallDeadline() const {
  const FrozenPlan& plan = *frozen_;
  const bool runs = plan.started > 0 && plan.last_sequence() > finished_;
  if (plan.ready == 0 && !runs) return std::nullopt;
  return plan.moved + options_.stall_warning / kStallParts;
}

std::optional<TimePoint> Participant::FrozenDeadline() const {
  if (frozen_->stopped) return std::nullopt;
  const std::optional<TimePoint> stall = StallDeadline();
  if (!stall || !frozen_->patience_ends) return stall;
  return std::min(*stall, *frozen_->patience_ends);
}

void Participant::TickFrozen(TimePoint now) {
  FrozenPlan& plan = *frozen_;
  if (const auto stall = StallDeadline(); stall && *stall <= now) {
    return Stop(wire::ThawReason::kStalled);
  }
  // Who waited first may have got what it waited for.
  plan.patience_ends.reset();
  for (const FrozenPlan::Bucket& bucket : plan.buckets) {
    for (const Index index : bucket.operations) {
      const Record& record = records_[index];
      if (!record.in_flight || !record.awaited) continue;
      const TimePoint ends = *record.awaited + options_.patience;
      if (ends <= now) return Stop(wire::ThawReason::kAwaited);
      plan.patience_ends = std::min(plan.patience_ends.value_or(ends), ends);
    }
  }
}

// ---- thawing

Status Participant::ApplyStop(std::uint32_t plan) {
  if (!frozen_ || plan != frozen_->number) {
    return Nonsense(Format("plan {} stops, which is not frozen", plan));
  }
  Stop(wire::ThawReason::kStopped);
  return Status::Ok();
}

Status Participant::ApplyThaw(const wire::Thaw& thaw, Effects& effects) {
  if (!frozen_ || thaw.plan != frozen_->number || !frozen_->stopped || tells_stopped_) {
    return Nonsense(Format("plan {} thaws, which has not stopped", thaw.plan));
  }
  if (thaw.started > frozen_->started ||
      frozen_->started - thaw.started > frozen_->buckets.size()) {
    return Nonsense(Format("a plan thaws after {} buckets, this rank has started {} of {}",
                           thaw.started, frozen_->started, frozen_->buckets.size()));
  }
  HVL_RETURN_IF_ERROR(Withdraw(thaw.started, effects));
  ++counters_.thaws[static_cast<std::size_t>(thaw.reason)];
  if (rank_ == 0) {
    effects.notices.push_back(
        {LogLevel::kDebug, Format("plan {} ends after {} buckets: rank {} {}", thaw.plan,
                                  thaw.started, thaw.rank, ReasonText(thaw.reason))});
  }
  Unfreeze();
  return Status::Ok();
}

/// No rank has passed, nor will, the gate of a bucket after the first `started` ones (see
/// Coordinator::EndThaw): what this rank has started of those is in flight as if it had just been
/// submitted. Each of their operations was submitted once since, so its record still tells how.
/// Internal when one of them has run here, which takes all ranks.
Status Participant::Withdraw(std::uint64_t started, Effects& effects) {
  FrozenPlan& plan = *frozen_;
  if (plan.started == started) return Status::Ok();
  const std::uint64_t last = plan.base + plan.counts.Batches(started);
  if (last < finished_) {
    return Nonsense(
        Format("batches after {} are withdrawn, this rank has run {}", last, finished_));
  }
  for (; plan.started > started; --plan.started) {
    const auto bucket = static_cast<std::size_t>((plan.started - 1) % plan.buckets.size());
    for (const Index index : plan.buckets[bucket].operations) {
      records_[index].in_flight = true;
      records_[index].unsent = true;
    }
  }
  last_sequence_ = plan.last_sequence();
  sets_.Find(kWorldSet)->last_sequence = last_sequence_;
  effects.withdraw = last_sequence_;
  std::erase_if(effects.run,
                [this](const Batch& batch) { return batch.sequence > last_sequence_; });
  return Status::Ok();
}

/// Everything in flight that is of the plan is announced.
void Participant::Unfreeze() {
  for (const FrozenPlan::Bucket& bucket : frozen_->buckets) {
    for (const Index index : bucket.operations) {
      Record& record = records_[index];
      record.bucket.reset();
      if (record.in_flight && record.unsent) burst_.push_back(index);
    }
  }
  frozen_.reset();
  announces_ = true;
}

}  // namespace hvl::plan
