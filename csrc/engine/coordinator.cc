#include "csrc/engine/coordinator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/engine/validate.h"

namespace hvl::engine {
namespace {

/// For variables that one thread writes at a time: those who watch them have been told already.
template <typename Value>
void StoreIfNew(std::atomic<Value>& variable, Value value) {
  if (variable.load(std::memory_order_relaxed) != value) variable.store(value);
}

}  // namespace

bool Coordinator::Step() {
  // To look at the links is a call of the system, and a loop of small operations would make it for
  // each of them. What can run goes first; messages wait for no more than this.
  constexpr Duration kMostPatience = std::chrono::microseconds(20);
  now_ = parts_.clock.Now();
  if (parts_.status != nullptr) parts_.status->Beat(now_);
  NoticeTracing();
  TakeLocal();
  bool worked = false;
  if (!parts_.queue.has_ready() || now_ - polled_at_ >= kMostPatience) {
    worked = parts_.mesh.Poll(Duration::zero(), *this);
    polled_at_ = now_;
  }
  // What is due since the last update; a deadline that this step brings is for the next one.
  if (parts_.news.deadline.load(std::memory_order_relaxed) <= now_) worked |= Tick();
  Act();
  UpdateDeadline();
  return worked;
}

void Coordinator::StepLocal() {
  if (!HasLocal()) return;
  now_ = parts_.clock.Now();
  if (parts_.status != nullptr) parts_.status->Beat(now_);
  NoticeTracing();
  TakeLocal();
  UpdateDeadline();
}

bool Coordinator::HasLocal() const {
  return parts_.registry.has_queued() || parts_.queue.has_news();
}

void Coordinator::TakeLocal() {
  if (parts_.queue.has_news()) TakeNews();
  if (parts_.registry.has_queued()) TakeSubmissions();
}

bool Coordinator::Tick() {
  const std::optional<TimePoint> due = parts_.planner.next_deadline();
  if (!due || *due > now_ || ended_session_) return false;
  parts_.planner.Tick(now_, effects_);
  return true;
}

void Coordinator::NoticeTracing() {
  if (parts_.tracer.on() == traces_) return;
  traces_ = !traces_;
  parts_.planner.SetTracing(traces_);
}

void Coordinator::TakeSubmissions() {
  parts_.registry.Take(taken_, awaited_);
  if (!taken_.empty()) SubmitTaken();
  for (const auto& [state, waiter] : awaited_) {
    // One that is done meanwhile may have a successor of the same name, for which nobody waits yet.
    if (ended_session_ || state->done()) continue;
    const Operation& operation = state->operation;
    parts_.planner.Awaited(operation.process_set, operation.name, waiter, now_);
  }
  awaited_.clear();
}

/// For whoever asks later what this rank was waiting for.
void Coordinator::NoteTaken() {
  const Operation& first = taken_.front()->operation;
  parts_.status->NoteSubmitted({.kind = OpKindName(first.kind),
                                .name = first.name,
                                .process_set = first.process_set,
                                .since = now_},
                               taken_.size());
}

/// What was submitted since the last time is announced together.
void Coordinator::SubmitTaken() {
  if (traces_) parts_.tracer.Cycle();
  if (parts_.status != nullptr) NoteTaken();
  for (StatePtr& state : taken_) {
    if (traces_) parts_.tracer.Submitted(*state);
    plan::Submission& submission = state->submission;
    submission.ticket = waiting_.Add(std::move(state));
    parts_.planner.Submit(std::move(submission), now_, effects_);
  }
  taken_.clear();
  parts_.planner.Flush(now_, effects_);
  Act();
}

void Coordinator::TakeNews() {
  const std::uint64_t finished = parts_.queue.TakeFinished();
  const Status failure = parts_.queue.TakeFailure();
  if (ended_session_) return;
  if (finished > std::exchange(reported_sequence_, finished)) {
    ForgetStarted(finished);
    parts_.planner.BatchFinished(finished, now_, effects_);
  }
  if (!failure.ok()) parts_.planner.DataPlaneFailed(failure, now_, effects_);
  Act();
}

void Coordinator::OnFrame(int peer, std::span<const std::byte> frame) {
  Count(parts_.counters.frames_received, 1);
  if (ended_session_) return;
  parts_.planner.Receive(peer, frame, now_, effects_);
}

void Coordinator::OnPeerLost(int peer, const Status& cause) {
  if (ended_session_) return;
  parts_.planner.PeerLost(peer, cause, now_, effects_);
}

/// Does what the planner asked for. Messages go early: peers wait for them. But who hears from this
/// rank after a thaw may rely on it that its gates have been withdrawn.
void Coordinator::Act() {
  if (effects_.empty()) return;
  if (effects_.withdraw) Withdraw(*effects_.withdraw);
  effects_.withdraw.reset();
  Send(effects_.send);
  effects_.send.clear();
  if (std::exchange(effects_.over, false)) parts_.mesh.FinishSending();
  for (const plan::ReadyNote& note : effects_.ready) parts_.tracer.Ready(note);
  effects_.ready.clear();
  for (const plan::TunerSample& sample : effects_.samples) {
    if (parts_.on_sample) parts_.on_sample(sample);
  }
  effects_.samples.clear();
  for (plan::Batch& batch : effects_.run) Dispatch(std::move(batch));
  effects_.run.clear();
  for (const ProcessSetId set : effects_.ended_rounds) parts_.registry.EndRound(set);
  effects_.ended_rounds.clear();
  for (const plan::Completion& completion : effects_.finish) FinishUnplanned(completion);
  effects_.finish.clear();
  parts_.registry.Finish(ended_);
  for (const plan::Notice& notice : effects_.notices) {
    if (logger_.Enabled(notice.level)) logger_.Write(notice.level, "plan", notice.text);
  }
  effects_.notices.clear();
  if (effects_.fatal.ok()) return;
  const Status fatal = std::exchange(effects_.fatal, Status::Ok());
  End(fatal, fatal);
}

void Coordinator::Send(const std::vector<plan::Outgoing>& frames) {
  for (const plan::Outgoing& outgoing : frames) {
    Count(parts_.counters.frames_sent, 1);
    Count(parts_.counters.bytes_sent, outgoing.frame.size());
    parts_.mesh.Send(outgoing.to, outgoing.frame);
  }
}

void Coordinator::Dispatch(plan::Batch&& batch) {
  Work work;
  work.operations.reserve(batch.entries.size());
  starts_ = starts_ || batch.gate;
  const std::size_t entries_before = started_entries_.size();
  for (const plan::BatchEntry& entry : batch.entries) {
    if (entry.zeros) {
      work.bytes += static_cast<std::size_t>(*entry.zeros) * DTypeBytes(batch.dtype);
      work.operations.push_back(nullptr);
      continue;
    }
    const StatePtr& state = waiting_.Get(entry.ticket);
    const auto part_count = static_cast<int>(entry.tensor_count);
    HVL_CHECK(state->part_count() - part_count >= static_cast<int>(entry.first_tensor),
              "no such tensor");
    for (const TensorArg& tensor : TensorsOf(entry, *state)) work.bytes += TensorBytes(tensor);
    if (traces_ && state->undispatched_parts == state->part_count()) {
      parts_.tracer.Dispatched(*state);
    }
    const bool ends = (state->undispatched_parts -= part_count) == 0;
    if (starts_) started_entries_.push_back({entry.ticket, part_count, ends});
    work.operations.push_back(ends && !starts_ ? waiting_.Remove(entry.ticket) : state);
  }
  if (starts_) {
    started_.push_back({batch.sequence, batch.gate, started_entries_.size() - entries_before});
  }
  work.plan = std::move(batch);
  work.dispatched_at = now_;
  Count(parts_.counters.batches_dispatched, 1);
  const bool accepted = parts_.queue.Push(std::move(work));
  HVL_CHECK(accepted, "batches are planned after the end of the session");
}

/// The parts of the batches after `sequence` are in no batch again.
void Coordinator::Withdraw(std::uint64_t sequence) {
  std::optional<plan::Gate> first;
  while (!started_.empty() && started_.back().sequence > sequence) {
    for (std::size_t left = started_.back().entry_count; left > 0; --left) {
      const StartedEntry& entry = started_entries_.back();
      waiting_.Get(entry.ticket)->undispatched_parts += entry.part_count;
      started_entries_.pop_back();
    }
    if (started_.back().gate) first = started_.back().gate;
    started_.pop_back();
  }
  starts_ = false;
  if (!first) return;
  // In this order: when the executor role comes back from the gate, the batches behind are gone.
  const std::uint64_t first_gate = GateNumber(first->plan, first->count);
  const std::uint64_t last_gate = GateNumber(first->plan + 1, 0) - 1;
  parts_.queue.Withdraw(sequence, first_gate, last_gate);
  parts_.backend.Withdraw(first_gate, last_gate);
}

/// What has run cannot be withdrawn.
void Coordinator::ForgetStarted(std::uint64_t finished) {
  while (!started_.empty() && started_.front().sequence <= finished) {
    for (std::size_t left = started_.front().entry_count; left > 0; --left) {
      const StartedEntry& entry = started_entries_.front();
      if (entry.ends) waiting_.Remove(entry.ticket);
      started_entries_.pop_front();
    }
    started_.pop_front();
  }
}

void Coordinator::FinishUnplanned(const plan::Completion& completion) {
  StatePtr state = waiting_.Remove(completion.ticket);
  if (traces_) parts_.tracer.EndedUnplanned(*state);
  if (parts_.status != nullptr) NoteFailure(completion.status);
  EndParts(state, state->undispatched_parts, completion.status);
}

void Coordinator::EndParts(const StatePtr& state, int count, const Status& status) {
  if (count == 0 || !state->EndParts(count, status)) return;
  ended_.push_back(state);
  if (parts_.status != nullptr) parts_.status->NoteDropped(1);
}

void Coordinator::UpdateDeadline() {
  const std::optional<TimePoint> due =
      ended_session_ ? std::nullopt : parts_.planner.next_deadline();
  StoreIfNew(parts_.news.deadline, due.value_or(TimePoint::max()));
  StoreIfNew(parts_.news.gathering, !ended_session_ && parts_.planner.gathering());
  const plan::PlanCounters& plans = parts_.planner.plan_counters();
  const auto thaws = std::accumulate(plans.thaws.begin(), plans.thaws.end(), std::uint64_t{0});
  parts_.counters.plan_freezes.store(plans.freezes, std::memory_order_relaxed);
  parts_.counters.plan_thaws.store(thaws, std::memory_order_relaxed);
  StoreIfNew(parts_.news.frozen, !ended_session_ && plans.freezes > thaws);
  parts_.registry.SetNeeded(ended_session_ ? 1 : parts_.planner.needed_submissions());
}

/// Of one operation, by the fault of another rank.
void Coordinator::NoteFailure(const Status& error) {
  const int culprit = error.culprit_rank();
  if (culprit == Status::kNoRank || culprit == parts_.mesh.rank()) return;
  parts_.status->NoteNamedPeer();
  // After a departure nothing is agreed on any more.
  if (error.code() != StatusCode::kAborted) return;
  parts_.status->SetPhase(RankPhase::kPeerLeft, culprit, error.message());
}

/// Before anybody hears of it: the program may end at once then.
void Coordinator::NoteEnd(const Status& cause, const Status& farewell) {
  const int culprit = cause.culprit_rank();
  if (farewell.ok()) {
    parts_.status->SetPhase(RankPhase::kFinished);
  } else if (culprit == Status::kNoRank || culprit == parts_.mesh.rank()) {
    parts_.status->SetPhase(RankPhase::kLocalError, Status::kNoRank, cause.ToString());
  } else {
    const bool left = cause.code() == StatusCode::kAborted;
    parts_.status->SetPhase(left ? RankPhase::kPeerLeft : RankPhase::kPeerLost, culprit,
                            cause.message());
  }
}

void Coordinator::End(const Status& cause, const Status& farewell) {
  if (std::exchange(ended_session_, true)) return;
  if (parts_.status != nullptr) NoteEnd(cause, farewell);
  if (!farewell.ok()) {
    // A peer's shutdown is no fault: whoever still waits or submits gets it as an error, and a rank
    // that is about to leave as well should not print one.
    const LogLevel level =
        cause.code() == StatusCode::kAborted ? LogLevel::kInfo : LogLevel::kError;
    if (logger_.Enabled(level)) {
      logger_.Write(level, "engine", Format("the session ends: {}", cause.ToString()));
    }
  }
  now_ = parts_.clock.Now();
  const std::vector<StatePtr> queued = parts_.registry.Close(cause);
  plan::Effects effects;
  parts_.planner.Leave(farewell, now_, effects);
  Send(effects.send);
  parts_.mesh.FinishSending();
  parts_.backend.Abort(cause);
  for (const Work& work : parts_.queue.Close(cause)) {
    for (std::size_t i = 0; i < work.operations.size(); ++i) {
      if (work.operations[i] == nullptr) continue;
      EndParts(work.operations[i], static_cast<int>(work.plan.entries[i].tensor_count), cause);
    }
  }
  for (const StatePtr& state : waiting_.RemoveAll()) {
    EndParts(state, state->undispatched_parts, cause);
  }
  for (const StatePtr& state : queued) EndParts(state, state->part_count(), cause);
  parts_.registry.Finish(ended_);
  effects_ = {};
  UpdateDeadline();
}

}  // namespace hvl::engine
