#include "tests/cpp/sim/simulation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/plan/process_sets.h"
#include "csrc/wire/codec.h"

namespace hvl::sim {
namespace {

constexpr std::uint64_t kGeneration = 3;
constexpr std::size_t kTraceLines = 80;
// Programs, late submissions and stall limits all end long before.
constexpr Duration kTimeLimit = std::chrono::hours(1);
// A run is some thousands of events; a loop that never ends is a bug to report.
constexpr std::uint64_t kEventLimit = 3'000'000;

std::uint64_t Thaws(const plan::PlanCounters& counters) {
  return std::accumulate(counters.thaws.begin(), counters.thaws.end(), std::uint64_t{0});
}

double Microseconds(TimePoint at) {
  return std::chrono::duration<double, std::micro>(at - TimePoint{}).count();
}

}  // namespace

Simulation::Simulation(const Scenario& scenario, const PlannerFactory& make_planner,
                       bool keep_trace)
    : scenario_(scenario),
      keep_trace_(keep_trace),
      random_(scenario.seed ^ 0x9e3779b97f4a7c15U),
      checker_(scenario),
      ranks_(static_cast<std::size_t>(scenario.size)) {
  for (int rank = 0; rank < scenario.size; ++rank) {
    At(rank).planner = make_planner(rank, scenario.size, kGeneration, scenario.options);
    At(rank).in_flight.resize(scenario.names.size());
    At(rank).sets.resize(scenario.members.size());
    At(rank).sets.front() = SetState::kLive;
    PlanAct(rank, random_.Upto(scenario.think));
  }
  for (std::size_t i = 0; i < scenario.faults.size(); ++i) {
    Plan(scenario.faults[i].at - TimePoint{}, Kind::kFault, scenario.faults[i].rank, 0, i);
  }
}

Outcome Simulation::Run() {
  while (!events_.empty() && !checker_.violation()) {
    const Event event = events_.top();
    events_.pop();
    if (event.at - TimePoint{} > kTimeLimit) break;
    now_ = event.at;
    if (++statistics_.events > kEventLimit) checker_.Fail("the world never comes to rest");
    Rank& self = At(event.rank);
    if (self.life == Life::kGone) continue;
    if (now_ < self.paused_until) {
      Plan(self.paused_until - now_, event.kind, event.rank, event.peer, event.data);
      continue;
    }
    if (random_.Percent(scenario_.pause_percent)) {
      self.paused_until =
          now_ + random_.Upto(std::chrono::milliseconds(random_.Percent(5) ? 3000 : 30));
    }
    Handle(event);
    checker_.Remembers(event.rank, self.planner->remembered_names(), now_);
  }
  if (!checker_.violation()) checker_.AtEnd(now_);
  Outcome outcome{checker_.violation(), statistics_, {trace_.begin(), trace_.end()}};
  outcome.statistics.Add(checker_.statistics());
  outcome.statistics.seeds = 1;
  outcome.statistics.freezes = At(0).planner->plan_counters().freezes;
  outcome.statistics.thaws = At(0).planner->plan_counters().thaws;
  outcome.statistics.huge_worlds = scenario_.size > 64 ? 1 : 0;
  return outcome;
}

void Simulation::Plan(Duration after, Kind kind, int rank, int peer, std::uint64_t data) {
  events_.push({now_ + after, next_order_++, kind, rank, peer, data});
}

void Simulation::Trace(const std::function<std::string()>& text) {
  if (!keep_trace_) return;
  trace_.push_back(Format("{:12.1f} us  {}", Microseconds(now_), text()));
  if (trace_.size() > kTraceLines) trace_.pop_front();
}

void Simulation::Handle(const Event& event) {
  Rank& self = At(event.rank);
  plan::Effects effects;
  switch (event.kind) {
    case Kind::kAct:
      self.act_planned = false;
      Act(event.rank);
      return;
    case Kind::kDeliver:
      Deliver(event.peer, event.rank);
      return;
    case Kind::kBatchDone:
      BatchDone(event.rank, event.data);
      return;
    case Kind::kBatchFailed:
      BatchFailed(event.rank, event.data, event.peer);
      return;
    case Kind::kTick:
      self.tick_planned.reset();
      self.planner->Tick(now_, effects);
      Absorb(event.rank, effects);
      return;
    case Kind::kFault:
      ApplyFault(scenario_.faults[static_cast<std::size_t>(event.data)]);
      return;
    case Kind::kEnd:
      if (self.tickets.empty()) Leave(event.rank, Status::Ok());
      return;
  }
}

// ---- programs

void Simulation::PlanAct(int rank, Duration after) {
  if (std::exchange(At(rank).act_planned, true)) return;
  Plan(after, Kind::kAct, rank);
}

/// Submits some of what may be submitted now, then announces it, or not yet.
void Simulation::Act(int rank) {
  Rank& self = At(rank);
  if (self.leave_when_idle && self.tickets.empty()) return Leave(rank, Status::Ok());
  const std::vector<Step>& program = scenario_.programs[static_cast<std::size_t>(rank)];
  if (!self.step_begun && self.step < program.size()) {
    self.step_begun = true;
    self.todo = program[self.step].operations;
  }
  const bool submitted = SubmitSome(rank);
  if (self.life == Life::kGone) return;
  if (self.unflushed && !(submitted && random_.Percent(scenario_.burst_percent))) {
    self.unflushed = false;
    plan::Effects effects;
    self.planner->Flush(now_, effects);
    Absorb(rank, effects);
    if (self.life == Life::kGone) return;
  }
  if (self.todo.empty() && !self.unflushed) FinishStep(rank);
  if (self.life == Life::kGone) return;
  if (submitted || self.unflushed) {
    PlanAct(rank, random_.Upto(scenario_.think));
  } else {
    TellWaits(rank);
  }
}

/// Nothing can be submitted before something ends: the program waits.
void Simulation::TellWaits(int rank) {
  Rank& self = At(rank);
  // A program is one thread.
  const auto waiter = IsBlocked(rank) ? plan::Waiter::kAlone : plan::Waiter::kAny;
  for (const auto& [ticket, entry] : self.tickets) {
    const std::size_t name = scenario_.operations[entry.operation].name_index;
    const bool first = ticket == self.tickets.begin()->first;
    self.planner->Awaited(scenario_.name_sets[name], scenario_.names[name],
                          first ? waiter : plan::Waiter::kAny, now_);
  }
  if (waiter == plan::Waiter::kAlone) checker_.Blocked(rank, self.tickets.begin()->first);
  PlanTick(rank);
}

/// All that is in flight must end before it submits anything.
bool Simulation::IsBlocked(int rank) {
  const Rank& self = At(rank);
  if (self.tickets.empty() || self.act_planned) return false;
  const std::vector<Step>& program = scenario_.programs[static_cast<std::size_t>(rank)];
  if (self.step == program.size()) return true;
  const Step& step = program[self.step];
  return step.wait_for_each || (self.todo.empty() && step.wait_at_end);
}

void Simulation::FinishStep(int rank) {
  Rank& self = At(rank);
  const std::vector<Step>& program = scenario_.programs[static_cast<std::size_t>(rank)];
  if (self.step == program.size()) {
    if (self.tickets.empty() && !scenario_.stays) {
      Plan(random_.Upto(scenario_.think), Kind::kEnd, rank);
    }
    return;
  }
  if (program[self.step].wait_at_end && !self.tickets.empty()) return;
  ++self.step;
  self.step_begun = false;
  PlanAct(rank, random_.Upto(scenario_.think));
}

/// True when something was submitted. What cannot be yet is planned for later: a late operation at
/// its time, a name in flight when it is done.
bool Simulation::SubmitSome(int rank) {
  Rank& self = At(rank);
  const std::vector<Step>& program = scenario_.programs[static_cast<std::size_t>(rank)];
  const bool for_each = self.step < program.size() && program[self.step].wait_for_each;
  int most = random_.Percent(scenario_.burst_percent) ? random_.Between(1, 10) : 1;
  if (for_each) most = self.tickets.empty() ? 1 : 0;
  int submitted = 0;
  for (std::size_t i = 0; i < self.todo.size() && submitted < most;) {
    const std::size_t operation = self.todo[i];
    const auto deviation = scenario_.deviations.find({rank, operation});
    if (deviation != scenario_.deviations.end()) {
      if (deviation->second.skip) {
        const wire::Signature& skipped = scenario_.operations[operation].signature;
        if (skipped.kind == OpKind::kProcessSet && !skipped.ranks.empty()) {
          self.sets[skipped.process_set] = SetState::kFailed;
        }
        self.todo.erase(self.todo.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      const auto [at, is_new] =
          self.not_before.try_emplace(operation, now_ + deviation->second.late);
      if (is_new && deviation->second.late > Duration{}) {
        Plan(deviation->second.late, Kind::kAct, rank);
      }
      if (now_ < at->second) {
        if (for_each) return submitted > 0;
        ++i;
        continue;
      }
    }
    const Readiness readiness = ReadinessOf(rank, operation);
    if (readiness == Readiness::kLater) {
      ++i;
      continue;
    }
    self.todo.erase(self.todo.begin() + static_cast<std::ptrdiff_t>(i));
    if (readiness == Readiness::kNever) continue;
    Submit(rank, operation);
    ++submitted;
    if (self.life == Life::kGone) return true;
  }
  return submitted > 0;
}

/// A name waits until it is not in flight; what is of a process set until the set is there; its
/// removal until its operations are done; everything of the world until a join is done.
Simulation::Readiness Simulation::ReadinessOf(int rank, std::size_t index) {
  Rank& self = At(rank);
  const Operation& operation = scenario_.operations[index];
  if (self.in_flight[operation.name_index]) return Readiness::kLater;
  if (self.joined && scenario_.name_sets[operation.name_index] == kWorldSet) {
    return Readiness::kLater;
  }
  const wire::Signature& signature = operation.signature;
  const bool removal = signature.kind == OpKind::kProcessSet && signature.ranks.empty();
  if (signature.kind == OpKind::kProcessSet && !removal) return Readiness::kNow;
  const SetState state = self.sets[signature.process_set];
  if (state == SetState::kFailed) return Readiness::kNever;
  if (state == SetState::kUnknown) return Readiness::kLater;
  if (!removal) return Readiness::kNow;
  const auto uses = [&](std::size_t other) {
    return scenario_.name_sets[scenario_.operations[other].name_index] == signature.process_set;
  };
  const bool in_use = std::any_of(self.tickets.begin(), self.tickets.end(),
                                  [&](const auto& entry) { return uses(entry.second.operation); });
  return in_use || std::any_of(self.todo.begin(), self.todo.end(), uses) ? Readiness::kLater
                                                                         : Readiness::kNow;
}

void Simulation::Submit(int rank, std::size_t operation_index) {
  Rank& self = At(rank);
  const Operation& operation = scenario_.operations[operation_index];
  plan::Submission submission;
  submission.ticket = self.next_ticket++;
  submission.signature = operation.signature;
  submission.transient = operation.transient;
  submission.site = operation.site;
  submission.round = self.rounds[scenario_.name_sets[operation.name_index]];
  if (!operation.first_dims.empty()) {
    submission.first_dims = operation.first_dims[static_cast<std::size_t>(rank)];
  }
  const auto deviation = scenario_.deviations.find({rank, operation_index});
  if (deviation != scenario_.deviations.end() && deviation->second.signature) {
    submission.signature = *deviation->second.signature;
    const ProcessSetId set = scenario_.name_sets[operation.name_index];
    submission.first_dims.resize(
        plan::AnnouncedDims(*submission.signature, scenario_.members[set].size()));
  }
  if (deviation != scenario_.deviations.end() && deviation->second.elsewhere) {
    submission.site = "elsewhere.py:1";
  }
  Trace([&] {
    return Format("rank {} submits '{}' as ticket {}", rank, submission.signature->name,
                  submission.ticket);
  });
  self.in_flight[operation.name_index] = true;
  if (operation.signature.kind == OpKind::kJoin) self.joined = true;
  self.tickets[submission.ticket] = {
      operation_index, std::max<std::size_t>(submission.signature->tensors.size(), 1)};
  self.unflushed = true;
  checker_.Submitted(rank, operation.name_index, submission, now_);
  plan::Effects effects;
  self.planner->Submit(std::move(submission), now_, effects);
  Absorb(rank, effects);
}

void Simulation::TicketDone(int rank, plan::Ticket ticket, bool well) {
  Rank& self = At(rank);
  const auto found = self.tickets.find(ticket);
  if (found == self.tickets.end()) return;  // the checker has complained
  const Operation& operation = scenario_.operations[found->second.operation];
  self.in_flight[operation.name_index] = false;
  self.tickets.erase(found);
  const wire::Signature& signature = operation.signature;
  if (signature.kind == OpKind::kJoin) self.joined = false;
  if (signature.kind == OpKind::kProcessSet && !signature.ranks.empty()) {
    self.sets[signature.process_set] = well ? SetState::kLive : SetState::kFailed;
  }
  PlanAct(rank, random_.Upto(scenario_.think));
}

// ---- planners

void Simulation::Absorb(int rank, plan::Effects& effects) {
  Rank& self = At(rank);
  CheckSilence(rank, effects);
  NotePlans(rank);
  for (plan::Outgoing& outgoing : effects.send)
    Send(rank, outgoing.to, {std::move(outgoing.frame)});
  if (effects.over) {
    self.over = true;
    EndStays();
  }
  if (effects.withdraw) Withdraw(rank, *effects.withdraw);
  for (plan::Batch& batch : effects.run) {
    Trace([&] {
      return Format(
          "rank {} gets batch {} of {} tensors{}", rank, batch.sequence, batch.entries.size(),
          batch.gate ? Format(", gate {} of plan {}", batch.gate->count, batch.gate->plan) : "");
    });
    self.queue.push_back(std::move(batch));
  }
  for (const ProcessSetId set : effects.ended_rounds) ++self.rounds[set];
  for (const plan::Completion& completion : effects.finish) {
    Trace([&] {
      return Format("rank {} ticket {} fails: {}", rank, completion.ticket,
                    completion.status.ToString());
    });
    checker_.Finished(rank, completion, now_);
    TicketDone(rank, completion.ticket, false);
  }
  for (const plan::Notice& notice : effects.notices) {
    Trace([&] { return Format("rank {} notices: {}", rank, notice.text); });
    checker_.Noticed(rank, notice);
  }
  if (!effects.fatal.ok()) {
    Trace([&] { return Format("rank {} ends: {}", rank, effects.fatal.ToString()); });
    checker_.Fatal(rank, effects.fatal, now_);
    plan::Effects last;
    self.planner->Leave(effects.fatal, now_, last);
    for (plan::Outgoing& outgoing : last.send) Send(rank, outgoing.to, {std::move(outgoing.frame)});
    self.life = Life::kGone;
    EndLinks(rank);
    return ConsiderBatches();
  }
  StartBatch(rank);
  PlanTick(rank);
}

/// While its plan is frozen a rank sends nothing but the end of that, or of itself.
void Simulation::CheckSilence(int rank, const plan::Effects& effects) {
  const plan::PlanCounters& counters = At(rank).planner->plan_counters();
  const auto thaws =
      std::accumulate(counters.thaws.begin(), counters.thaws.end(), std::uint64_t{0});
  if (!At(rank).frozen || counters.freezes == thaws) return;
  for (const plan::Outgoing& outgoing : effects.send) {
    const Result<wire::Message> message = wire::Decode(outgoing.frame);
    if (!message.ok() || std::holds_alternative<wire::Stopped>(*message) ||
        std::holds_alternative<wire::Bye>(*message)) {
      continue;
    }
    const auto* decide = std::get_if<wire::Decide>(&*message);
    if (decide == nullptr || !decide->stop) {
      checker_.Fail(Format("rank {} sends while its plan is frozen", rank));
    }
  }
}

void Simulation::NotePlans(int rank) {
  const plan::PlanCounters& counters = At(rank).planner->plan_counters();
  At(rank).frozen = counters.freezes > Thaws(counters);
}

void Simulation::PlanTick(int rank) {
  Rank& self = At(rank);
  const std::optional<TimePoint> deadline = self.planner->next_deadline();
  if (!deadline || (self.tick_planned && *self.tick_planned <= *deadline)) return;
  self.tick_planned = std::max(*deadline, now_);
  Plan(*self.tick_planned - now_ + random_.Upto(std::chrono::microseconds(50)), Kind::kTick, rank);
}

void Simulation::Leave(int rank, const Status& cause) {
  Trace([&] { return Format("rank {} leaves: {}", rank, cause.ToString()); });
  cause.ok() ? checker_.Left(rank) : checker_.Died(rank, now_);
  plan::Effects effects;
  At(rank).planner->Leave(cause, now_, effects);
  for (plan::Outgoing& outgoing : effects.send) {
    Send(rank, outgoing.to, {std::move(outgoing.frame)});
  }
  At(rank).life = Life::kGone;
  if (cause.ok() && scenario_.IsLeader(rank)) {
    staying_.push_back(rank);
    EndStays();
  } else {
    EndLinks(rank);
  }
  ConsiderBatches();
}

void Simulation::ApplyFault(const Fault& fault) {
  Rank& self = At(fault.rank);
  switch (fault.kind) {
    case FaultKind::kCrash:
      Trace([&] { return Format("rank {} dies", fault.rank); });
      checker_.Died(fault.rank, now_);
      self.life = Life::kGone;
      EndLinks(fault.rank);
      return ConsiderBatches();
    case FaultKind::kError:
      return Leave(fault.rank, Status(StatusCode::kInternal, "out of luck", fault.rank));
    case FaultKind::kLeave:
      return Leave(fault.rank, Status::Ok());
    case FaultKind::kLeaveIdle:
      self.leave_when_idle = true;
      PlanAct(fault.rank, Duration{});
      return;
  }
}

// ---- network

void Simulation::Send(int from, int to, Item item) {
  Link& link = LinkOf(from, to);
  ++statistics_.frames;
  if (from == 0 && to == 1 && !item.end) {
    const Result<wire::Message> message = wire::Decode(item.frame);
    const auto* decide = message.ok() ? std::get_if<wire::Decide>(&*message) : nullptr;
    if (decide != nullptr && decide->starts_epoch) ++statistics_.epochs;
  }
  const Duration latency =
      random_.Upto(random_.Percent(5) ? scenario_.long_latency : scenario_.latency);
  link.last_arrival = std::max(link.last_arrival, now_ + latency);
  link.items.push_back(std::move(item));
  Plan(link.last_arrival - now_, Kind::kDeliver, to, from);
}

/// After what it has sent; each peer notices at its own time.
void Simulation::EndLinks(int rank) {
  for (int peer = 0; peer < scenario_.size; ++peer) {
    if (peer != rank && At(peer).life == Life::kRunning)
      Send(rank, peer, {.frame = {}, .end = true});
  }
  EndStays();
}

/// Leaders that have left go when nobody waits for anything that they would pass on.
void Simulation::EndStays() {
  const bool needed = std::ranges::any_of(
      ranks_, [](const Rank& rank) { return rank.life == Life::kRunning && !rank.over; });
  if (needed) return;
  for (const int leader : std::exchange(staying_, {})) {
    for (int rank = 0; rank < scenario_.size; ++rank) {
      if (rank == leader || At(rank).life == Life::kGone) continue;
      Send(leader, rank, {.frame = {}, .end = true});
      for (int other = 0; other < scenario_.size; ++other) {
        if (other == rank || other == leader || !scenario_.ComesOver(leader, other, rank)) continue;
        if (!out_of_reach_.emplace(other, rank).second) continue;
        Send(leader, rank, {.frame = {}, .end = true, .lost = other});
      }
    }
  }
}

void Simulation::Deliver(int from, int to) {
  Link& link = LinkOf(from, to);
  const Item item = std::move(link.items.front());
  link.items.pop_front();
  if (out_of_reach_.contains({from, to})) return;
  plan::Effects effects;
  if (item.end) {
    const int lost = item.lost < 0 ? from : item.lost;
    Trace([&] { return Format("rank {} loses rank {} with the link of {}", to, lost, from); });
    At(to).planner->PeerLost(lost, Status(StatusCode::kUnavailable, "end of stream", from), now_,
                             effects);
  } else {
    Trace([&] { return Format("rank {} hears rank {}: {} bytes", to, from, item.frame.size()); });
    if (random_.Percent(scenario_.stale_frame_percent)) {
      // A late message of an earlier life of the job.
      const wire::Bytes stale = wire::Encode(wire::Bye{kGeneration - 1, 0, 0, Status::Ok()});
      At(to).planner->Receive(from, stale, now_, effects);
    }
    At(to).planner->Receive(from, item.frame, now_, effects);
  }
  Absorb(to, effects);
}

// ---- data plane

void Simulation::StartBatch(int rank) {
  Rank& self = At(rank);
  if (self.running || self.at_gate || self.queue.empty() || self.life == Life::kGone) return;
  if (self.queue.front().gate) return ReachGate(rank);
  RunBatch(rank);
}

/// A gate opens when all ranks have published its count.
void Simulation::ReachGate(int rank) {
  Rank& self = At(rank);
  const plan::Gate& own = *self.queue.front().gate;
  GateState& gate = gates_[{own.plan, own.count}];
  if (gate.published == 0) gate.hash = own.hash;
  if (gate.hash != own.hash) checker_.Fail(Format("rank {} is at another bucket", rank));
  self.at_gate = true;
  gate.waiting.push_back(rank);
  if (++gate.published < ranks_.size()) return;
  for (const int waiting : std::exchange(gate.waiting, {})) {
    if (At(waiting).life == Life::kRunning) PassGate(waiting);
  }
}

void Simulation::PassGate(int rank) {
  Rank& self = At(rank);
  const plan::Gate& own = *self.queue.front().gate;
  GateState& gate = gates_[{own.plan, own.count}];
  gate.passed = true;
  if (gate.withdrawn) {
    checker_.Fail(Format("rank {} passes gate {} of plan {}, where others have withdrawn", rank,
                         own.count, own.plan));
  }
  self.at_gate = false;
  if (rank == 0) ++statistics_.buckets;
  RunBatch(rank);
}

/// What has begun cannot be withdrawn, on any rank.
void Simulation::Withdraw(int rank, std::uint64_t sequence) {
  Rank& self = At(rank);
  Trace([&] { return Format("rank {} withdraws what is after batch {}", rank, sequence); });
  if (self.running && self.queue.front().sequence > sequence) {
    checker_.Fail(Format("rank {} withdraws batch {}, which runs", rank, self.started));
  }
  while (!self.queue.empty() && self.queue.back().sequence > sequence) {
    const plan::Batch& batch = self.queue.back();
    if (batch.gate) {
      GateState& gate = gates_[{batch.gate->plan, batch.gate->count}];
      gate.withdrawn = true;
      std::erase(gate.waiting, rank);
      if (gate.passed) {
        checker_.Fail(Format("rank {} withdraws from gate {} of plan {}, which others have passed",
                             rank, batch.gate->count, batch.gate->plan));
      }
      ++statistics_.withdrawals;
    }
    if (self.queue.size() == 1) self.at_gate = false;
    self.queue.pop_back();
  }
}

void Simulation::RunBatch(int rank) {
  Rank& self = At(rank);
  const plan::Batch& batch = self.queue.front();
  checker_.Ran(rank, batch, now_);
  self.running = true;
  self.outcome_planned = false;
  self.started = batch.sequence;
  Running& running = running_[batch.sequence];
  ++running.begun;
  running.unfinished.push_back(rank);
  Consider(batch.sequence);
}

/// Somebody is gone: batches may fail.
void Simulation::ConsiderBatches() {
  somebody_gone_ = true;
  std::vector<std::uint64_t> sequences;
  for (const auto& [sequence, running] : running_) {
    if (!running.unfinished.empty()) sequences.push_back(sequence);
  }
  for (const std::uint64_t sequence : sequences) Consider(sequence);
}

/// An operation ends on a rank when all members have begun it; a broadcast when the root has, what
/// needs no data at once. It fails when one that is needed is gone.
void Simulation::Consider(std::uint64_t sequence) {
  const std::vector<int> ranks = running_[sequence].unfinished;
  std::vector<int> left;
  if (!somebody_gone_ && !CanFinish(At(ranks.back()).queue.front())) return;
  for (const int rank : ranks) {
    Rank& self = At(rank);
    if (self.life == Life::kGone) continue;
    if (CanFinish(self.queue.front())) {
      self.outcome_planned = true;
      Plan(random_.Upto(scenario_.batch_time), Kind::kBatchDone, rank, 0, sequence);
    } else if (const std::optional<int> obstacle = Obstacle(rank)) {
      self.outcome_planned = true;
      Plan(random_.Upto(std::chrono::milliseconds(1)), Kind::kBatchFailed, rank, *obstacle,
           sequence);
    } else {
      left.push_back(rank);
    }
  }
  running_[sequence].unfinished = std::move(left);
}

bool Simulation::CanFinish(const plan::Batch& batch) const {
  if (batch.spec.kind == OpKind::kProcessSet || batch.spec.kind == OpKind::kJoin) return true;
  if (batch.spec.kind == OpKind::kBroadcast) {
    const auto root = static_cast<std::size_t>(batch.spec.root_rank);
    return !scenario_.IsMember(batch.spec.process_set, batch.spec.root_rank) ||
           ranks_[root].started >= batch.sequence;
  }
  if (batch.spec.process_set >= scenario_.members.size()) return true;  // the checker complains
  return running_.at(batch.sequence).begun == scenario_.members[batch.spec.process_set].size();
}

/// One of the ranks that are gone and have not begun the batch: the data plane sees any of them.
std::optional<int> Simulation::Obstacle(int rank) {
  const plan::Batch& batch = At(rank).queue.front();
  const std::uint64_t sequence = batch.sequence;
  std::vector<int> gone;
  for (int other = 0; other < scenario_.size; ++other) {
    if (!scenario_.IsMember(batch.spec.process_set, other)) continue;
    if (At(other).life == Life::kGone && At(other).started < sequence) gone.push_back(other);
  }
  if (gone.empty()) return std::nullopt;
  return random_.Pick(gone);
}

void Simulation::BatchDone(int rank, std::uint64_t sequence) {
  Rank& self = At(rank);
  const plan::Batch batch = std::move(self.queue.front());
  self.queue.pop_front();
  self.running = false;
  self.finished = sequence;
  Trace([&] { return Format("rank {} has run batch {}", rank, sequence); });
  plan::Effects effects;
  self.planner->BatchFinished(sequence, now_, effects);
  for (const plan::BatchEntry& entry : batch.entries) {
    if (entry.zeros) continue;
    const auto found = self.tickets.find(entry.ticket);
    if (found == self.tickets.end()) continue;
    found->second.tensors_left -= entry.tensor_count;
    if (found->second.tensors_left == 0) TicketDone(rank, entry.ticket, true);
  }
  Absorb(rank, effects);
}

void Simulation::BatchFailed(int rank, std::uint64_t sequence, int blamed) {
  Trace([&] { return Format("rank {} cannot run batch {}: rank {}", rank, sequence, blamed); });
  plan::Effects effects;
  At(rank).planner->DataPlaneFailed(
      Status(StatusCode::kUnavailable, Format("rank {} closed its socket", blamed), blamed), now_,
      effects);
  Absorb(rank, effects);
}

}  // namespace hvl::sim
