// The coordinator's half of "negotiate, freeze, verify, thaw": when a plan freezes, and how it
// ends. docs/negotiation.md has the whole protocol.
#include <algorithm>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/plan/coordinator.h"
#include "csrc/plan/frame_rules.h"

namespace hvl::plan {
namespace {

// A plan travels in one frame.
constexpr std::size_t kMaxPlanTensors = std::size_t{1} << 18;

// A plan that has run for so many times the instances that it was learned from has paid for itself.
constexpr std::uint64_t kGoodLife = 10;
// Instances to wait for grow up to so many times HVL_FREEZE_AFTER.
constexpr std::uint64_t kMaxBackOff = 64;

// Operations that no plan can hold, before the first one: more belong to no start of a program.
constexpr std::size_t kManyObstacles = 500;

}  // namespace

// ---- freezing

/// Of the world, and known to all by its id.
bool Coordinator::MayPlan(const Record& record) const {
  return record.id && record.set == kWorldSet && !record.redefined && !record.lacks_joined &&
         IsPlannable(record.agreed.kind);
}

void Coordinator::NoteDecided(Index index) {
  if (freeze_after_ == 0) return;
  if (MayPlan(records_[index])) {
    steady_.NoteDecided(index, records_[index].ready_at);
  } else {
    steady_.NoteOther();
    if (tuner_ && last_plan_ == 0 && ++obstacles_ == kManyObstacles) NoteObstacle(index);
  }
}

/// A tuner that has nothing to do says why, once.
void Coordinator::NoteObstacle(Index index) {
  const Record& record = records_[index];
  const std::string_view kind = OpKindName(record.agreed.kind);
  obstacle_ = Format(
      "HVL_AUTOTUNE has nothing to tune: it works while the plan of a program is frozen, and {} "
      "operations that no plan can hold have kept this one from freezing, the latest the {} '{}'. "
      "Plans hold named allreduces, broadcasts and reducescatters of all ranks: name operations, "
      "or do others less often",
      kManyObstacles, kind, records_.name(index));
}

/// Every rank has then had the same number of instances of everything in the plan, and what it has
/// submitted since, announced or not, belongs to the next one.
bool Coordinator::MayFreeze() const {
  if (freeze_after_ == 0 || plan_ || departed_) return false;
  if (steady_.instances() < InstancesToFreeze() || !batcher_.empty()) return false;
  if (failed_.size() > 0 || !joined_.empty() || !changing_.empty()) return false;
  const std::vector<Index> operations = steady_.LearnedOrder();
  std::size_t tensors = 0;
  for (const Index index : operations) tensors += records_[index].costs.size();
  if (tensors > kMaxPlanTensors) return false;
  // Somebody waits for something else, or differently: not steady after all.
  std::size_t planned = 0;
  for (const Index index : operations) {
    const Record& record = records_[index];
    if (record.phase != Phase::kWaiting) continue;
    if (!record.proposals.empty() || record.sites.differ()) return false;
    ++planned;
  }
  for (Index index = oldest_; index != kNoIndex; index = records_[index].newer) {
    if (planned-- == 0) return false;
  }
  return true;
}

void Coordinator::Freeze() {
  plan_.emplace();
  plan_->operations = steady_.LearnedOrder();
  std::vector<PlannedOperation> operations;
  for (const Index index : plan_->operations) {
    Record& record = records_[index];
    operations.push_back({*record.id, record.costs});
    for (const TensorCost& cost : record.costs) plan_->round_bytes += cost.bytes;
    record.planned = true;
    if (record.phase != Phase::kWaiting) continue;
    // The ranks that have announced it keep it to themselves from here on.
    Unlink(index);
    record.phase = Phase::kIdle;
  }
  wire::Decide& decide = Building();
  decide.freeze.emplace();
  decide.freeze->plan = ++last_plan_;
  decide.freeze->buckets = MakeBuckets(operations, SizesOfBuckets());
  decide.freeze->hash =
      PlanHash(decide.freeze->buckets, [this](std::uint32_t id) -> const wire::Signature& {
        return records_[ids_.FindCurrent(id)].agreed;
      });
  plan_->decision = decide.number;
  plan_->base = dispatched_;
  plan_->counts = BucketCounts(decide.freeze->buckets);
  plan_->stopped = RankSet(size_);
  tuning_ = false;
  if (tuner_) tuner_->Pause();
}

BucketSizes Coordinator::SizesOfBuckets() const {
  const std::size_t threshold = options_.fusion_threshold_bytes;
  if (!tuner_) {
    return {.most = std::min(threshold, options_.bucket_bytes),
            .edge = std::min(threshold, options_.edge_bucket_bytes)};
  }
  // The tuner's sizes begin at 1, a threshold of 0 means that nothing is fused.
  return {.most = std::min(threshold, static_cast<std::size_t>(tuner_->sizes()[0])),
          .edge = std::min(threshold, static_cast<std::size_t>(tuner_->sizes()[1]))};
}

// ---- while frozen

/// A rank that has applied the freeze announces nothing. What others announced before is either in
/// the plan, and they will keep it to themselves when they get there; or it is not, and waits for
/// the thaw that it causes.
Status Coordinator::Hold(int from, wire::Announce&& announce, TimePoint now) {
  const auto empty = [&] { return announce.known.empty() && announce.fresh.empty(); };
  if (empty()) return Status::Ok();
  if (announce.acknowledged >= plan_->decision) {
    return Nonsense(Format("an announcement while plan {} is frozen", last_plan_));
  }
  HVL_RETURN_IF_ERROR(DropPlanned(announce));
  if (empty()) return Status::Ok();
  held_.push_back({from, std::move(announce)});
  if (!plan_->thawing) BeginThaw(from, wire::ThawReason::kOperation, now);
  return Status::Ok();
}

Status Coordinator::DropPlanned(wire::Announce& announce) const {
  std::vector<wire::IdRun> kept;
  for (const wire::IdRun& run : announce.known) {
    for (std::uint32_t id = run.first; id < run.first + run.count; ++id) {
      HVL_ASSIGN_OR_RETURN(const Index index, ids_.Find(announce.epoch, id));
      if (records_[index].planned) continue;
      if (!kept.empty() && kept.back().first + kept.back().count == id) {
        ++kept.back().count;
      } else {
        kept.push_back({id, 1});
      }
    }
  }
  announce.known = std::move(kept);
  return Status::Ok();
}

/// The rounds of a plan are the tuner's steps: nothing but their length tells how good it is.
void Coordinator::Tune(TimePoint now, Effects& effects) {
  if (!tuner_ || plan_->thawing) return;
  const std::vector<std::int64_t> sizes = tuner_->sizes();
  while (finished_ >=
         plan_->base + plan_->counts.Batches((plan_->rounds + 1) * plan_->counts.buckets())) {
    ++plan_->rounds;
    if (auto sample = tuner_->OnStep(now, plan_->round_bytes)) {
      effects.samples.push_back(*std::move(sample));
    }
  }
  if (tuner_->sizes() == sizes) return;
  tuning_ = true;
  BeginThaw(0, wire::ThawReason::kTuned, now);
}

// ---- thawing

Status Coordinator::OnStopped(int from, const wire::Stopped& stopped, TimePoint now) {
  if (departed_) return Status::Ok();
  if (!plan_ || stopped.plan != last_plan_) {
    return Nonsense(Format("it stops plan {}, which is not frozen", stopped.plan));
  }
  if (plan_->stopped.Contains(from)) {
    return Nonsense(Format("it stops plan {} twice", stopped.plan));
  }
  if (!plan_->thawing) {
    if (stopped.reason == wire::ThawReason::kStopped) {
      return Nonsense(Format("it stops plan {} unasked, without a reason", stopped.plan));
    }
    BeginThaw(from, stopped.reason, now);
  }
  // An operation comes again only after it has run, and then all ranks have started its bucket: no
  // rank is ahead of another one by more than a round.
  const bool is_first = plan_->stopped.empty();
  const std::uint64_t least = is_first ? stopped.started : plan_->least_started;
  const std::uint64_t most = is_first ? stopped.started : plan_->most_started;
  const std::uint64_t spread = std::max(most, stopped.started) - std::min(least, stopped.started);
  if (spread > plan_->counts.buckets()) {
    // Of two that contradict each other; rank 0 is this one.
    return {StatusCode::kInternal,
            Format("it has started {} to {} buckets of a plan of {}, and another rank {}", least,
                   most, plan_->counts.buckets(), stopped.started),
            from != 0 ? from : plan_->last};
  }
  return NoteStopped(from, stopped.started);
}

void Coordinator::BeginThaw(int first, wire::ThawReason reason, TimePoint now) {
  plan_->thawing = true;
  plan_->first = first;
  plan_->reason = reason;
  plan_->since = now;
  plan_->next_warning = now + options_.stall_warning;
  Building().stop = last_plan_;
  CutDecision();
}

Status Coordinator::NoteStopped(int rank, std::uint64_t started) {
  const bool is_first = plan_->stopped.empty();
  if (!plan_->stopped.Insert(rank)) return Status::Ok();
  if (is_first || started < plan_->least_started) {
    plan_->least_started = started;
    plan_->least = rank;
  }
  plan_->most_started = is_first ? started : std::max(plan_->most_started, started);
  plan_->last = rank;
  if (!plan_->stopped.full()) return Status::Ok();
  if (plan_->base + plan_->counts.Batches(plan_->least_started) < finished_) {
    // What has run here, all ranks have started.
    return {StatusCode::kInternal,
            Format("it has started {} buckets of a plan of which rank 0 has run more",
                   plan_->least_started),
            plan_->least};
  }
  EndThaw();
  return Status::Ok();
}

/// Let C be the fewest buckets that any rank has started. All ranks have started the first C, and
/// what is started is published at its gate sooner or later: these pass everywhere, and run. The
/// rank that has started C has not published more and, having stopped, never will: no rank passes
/// the gate of a later one. So those that wait there withdraw without having touched any data, and
/// their operations are announced as if they had just been submitted. Nothing is lost, nothing runs
/// twice, and no rank needs to be asked whether it agrees.
void Coordinator::EndThaw() {
  const Plan plan = *std::exchange(plan_, std::nullopt);
  for (const Index index : plan.operations) records_[index].planned = false;
  dispatched_ = plan.base + plan.counts.Batches(plan.least_started);
  if (dispatched_ > plan.base) dispatched_here_ = dispatched_;
  steady_.NoteOther();
  if (plan.reason != wire::ThawReason::kTuned) {
    tuning_ = false;
    BackOff(plan.least_started / plan.counts.buckets());
  }
  Building().thaw = wire::Thaw{last_plan_, plan.least_started, plan.first, plan.reason};
  CutDecision();
  if (!plan.departure) return;
  held_.clear();
  Depart(*plan.departure);
}

/// A program that strays every seventh step would freeze and thaw again and again, and pay some
/// delays for it each time: so plans that do not last make the next one wait for twice as many
/// instances, which such a program never gets to. One that lasts (a validation every thousand
/// steps ends it) forgives that.
void Coordinator::BackOff(std::uint64_t instances) {
  const auto first = static_cast<std::uint64_t>(options_.freeze_after);
  if (instances >= kGoodLife * freeze_after_) {
    freeze_after_ = first;
  } else {
    freeze_after_ = std::min(2 * freeze_after_, kMaxBackOff * first);
  }
}

std::vector<Coordinator::Held> Coordinator::TakeHeld() {
  if (plan_) return {};
  return std::exchange(held_, {});
}

/// A rank that does not answer hangs as a whole, since its program is not asked.
void Coordinator::CheckThaw(TimePoint now, Effects& effects) {
  const std::optional<TimePoint> due = ThawDeadline();
  if (!due || now < *due) return;
  const RankSet missing = plan_->stopped.Complement();
  const double age = std::chrono::duration<double>(now - plan_->since).count();
  const std::string text = Format(
      "{} {} not answered for {:.1f} s, and nothing can be decided without (has the process "
      "been stopped? is its host overloaded?)",
      missing.ToString(), missing.count() == 1 ? "has" : "have", age);
  if (options_.stall_shutdown != Duration{} && now - plan_->since >= options_.stall_shutdown) {
    effects.fatal = Status(StatusCode::kTimeout, text, missing.First());
    return;
  }
  effects.notices.push_back({LogLevel::kWarning, text});
  while (plan_->next_warning <= now) plan_->next_warning += plan_->next_warning - plan_->since;
}

std::optional<TimePoint> Coordinator::ThawDeadline() const {
  if (!plan_ || !plan_->thawing || !options_.stall_check) return std::nullopt;
  if (options_.stall_shutdown == Duration{}) return plan_->next_warning;
  return std::min(plan_->next_warning, plan_->since + options_.stall_shutdown);
}

}  // namespace hvl::plan
