// A participant's part in telling ranks apart that are slow from ranks that wait for each other:
// what blocks this rank, and what becomes of its unnamed operations when a round of them ends.
// docs/negotiation.md has the rule.
#include <algorithm>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/plan/frame_rules.h"
#include "csrc/plan/participant.h"
#include "csrc/plan/stall.h"

namespace hvl::plan {

// ---- what blocks this rank

void Participant::Awaited(ProcessSetId set, std::string_view name, Waiter waiter, TimePoint now) {
  const std::optional<Index> index = records_.Find(set, name);
  if (!index) return;
  Record& record = records_[*index];
  // What a frozen plan has started may be in flight again, when the plan thaws.
  if (!record.in_flight && !record.bucket) return;
  NoteWaiter(*index, waiter, now);
  if (!record.in_flight) return;
  record.awaited = now;
  if (frozen_ && record.bucket) NotePatience(now);
}

void Participant::NoteWaiter(Index index, Waiter waiter, TimePoint now) {
  const bool same = block_ && block_->operation == index;
  if (waiter == Waiter::kAny) {
    if (same) NoteUnblocked();
    return;
  }
  const bool alone = waiter == Waiter::kAlone;
  if (same && block_->alone == alone) return;
  NoteUnblocked();
  block_ = Block{.operation = index, .since = now, .alone = alone};
}

/// Although the operation goes on. What was said is taken back by an announcement of nothing.
void Participant::NoteUnblocked() {
  if (!block_) return;
  acknowledge_ = acknowledge_ || block_->told;
  block_.reset();
}

/// None while the coordinator does not know that this rank has submitted the operation.
std::optional<TimePoint> Participant::BlockedDeadline() const {
  if (!block_ || block_->told || frozen_ || departed_) return std::nullopt;
  const Record& record = records_[block_->operation];
  if (!record.in_flight || record.unsent) return std::nullopt;
  return block_->since + DeadlockAge(options_);
}

std::optional<wire::Blocked> Participant::BlockedNow() const {
  if (!block_ || !block_->told) return std::nullopt;
  const Record& record = records_[block_->operation];
  if (!record.in_flight || record.unsent) return std::nullopt;
  return wire::Blocked{records_.name(block_->operation), record.set, block_->alone};
}

std::optional<TimePoint> Participant::next_deadline() const {
  if (frozen_) return FrozenDeadline();
  return acknowledge_ ? TimePoint{} : BlockedDeadline();  // at once
}

void Participant::Tick(TimePoint now) {
  const std::optional<TimePoint> due = next_deadline();
  if (!due || now < *due) return;
  if (frozen_) return TickFrozen(now);
  if (!acknowledge_) block_->told = true;
  acknowledge_ = true;  // an announcement of nothing else is sent after every call
}

// ---- rounds

/// All unnamed operations of the set that are in flight are of the round, since those that all
/// ranks had submitted were decided before. Who has none hears of it by the next one.
Status Participant::EndRound(ProcessSetId id, const Status& error, Effects& effects) {
  std::vector<std::pair<std::uint64_t, Index>> ended;
  for (Index index = 0; index < records_.bound(); ++index) {
    const Record& record = records_[index];
    if (record.set != id || !record.in_flight) continue;
    if (!HasRound(record.signature().kind, record.transient)) continue;
    if (!record.dispatched.empty()) {
      return Nonsense(Format("'{}' fails after it has begun", records_.name(index)));
    }
    ended.emplace_back(record.order, index);
  }
  std::sort(ended.begin(), ended.end());
  for (const auto& [order, index] : ended) Finish(index, error, effects);
  ProcessSet& set = *sets_.Find(id);
  ++set.rounds_ended;
  set.round_error = error;
  const bool joined = id == kWorldSet && join_;  // see NoteInFlight
  set.owes_round_error = ended.empty() && !joined;
  effects.ended_rounds.push_back(id);
  return Status::Ok();
}

bool Participant::FailsWithRound(ProcessSetId id, const Submission& submission, Effects& effects) {
  ProcessSet& set = *sets_.Find(id);
  if (!set.owes_round_error && submission.round == set.rounds_ended) return false;
  set.owes_round_error = false;
  effects.finish.push_back({submission.ticket, set.round_error});
  return true;
}

}  // namespace hvl::plan
