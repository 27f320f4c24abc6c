// The coordinator's rule for ranks that wait for each other: none is slow, all are blocked in
// operations that another one of them will never submit. docs/negotiation.md tells why the rule
// fails no program that could go on.
#include <algorithm>
#include <iterator>
#include <utility>

#include "csrc/plan/coordinator.h"
#include "csrc/plan/mismatch.h"

namespace hvl::plan {

void Coordinator::NoteBlocked(int from, const std::optional<wire::Blocked>& blocked,
                              Effects& effects) {
  std::optional<Block>& block = blocks_[static_cast<std::size_t>(from)];
  block.reset();
  if (!blocked) return;
  const std::optional<Index> operation = records_.Find(blocked->process_set, blocked->name);
  if (!operation) return;  // it has been decided meanwhile
  block = Block{*operation, blocked->alone};
  for (;;) {
    const std::vector<Waiters> deadlock = Deadlock();
    if (deadlock.empty()) return;
    FailDeadlock(deadlock, effects);  // they are not blocked in these any more
  }
}

/// By operation, of those that wait still. A rank speaks of every further one before it is among
/// those that have announced it. Who has joined waits for all that the others have to do.
std::vector<Coordinator::Waiters> Coordinator::BlockedRanks() const {
  std::vector<Waiters> waiters;
  for (int rank = 0; rank < size_; ++rank) {
    const std::optional<Block>& block = blocks_[static_cast<std::size_t>(rank)];
    if (!block) continue;
    const Record& record = records_[block->operation];
    if (record.phase != Phase::kWaiting || !record.announced.Contains(rank)) continue;
    if (record.joins) continue;
    auto of_operation = std::find_if(waiters.begin(), waiters.end(), [&](const Waiters& others) {
      return others.operation == block->operation;
    });
    if (of_operation == waiters.end()) {
      waiters.push_back({block->operation, RankSet(size_), RankSet(size_)});
      of_operation = std::prev(waiters.end());
    }
    of_operation->ranks.Insert(rank);
    if (block->alone) of_operation->alone.Insert(rank);
  }
  return waiters;
}

/// Ranks of `others` that the operation waits for and that, being blocked, will not submit it.
/// (They could from another thread, unless it is unnamed, or their blocked thread is alone.)
RankSet Coordinator::WaitsFor(const Waiters& some, const Waiters& others) const {
  const Record& record = records_[some.operation];
  RankSet ranks = record.transient ? others.ranks : others.alone;
  ranks.EraseAll(Missing(record).Complement());
  return ranks;
}

/// All of `stuck` that have to go on before the first one can.
std::vector<Coordinator::Waiters> Coordinator::WaitedFor(const Waiters& first,
                                                         const std::vector<Waiters>& stuck) const {
  std::vector<Waiters> found;
  std::vector<Waiters> open = {first};
  while (!open.empty()) {
    const Waiters some = std::move(open.back());
    open.pop_back();
    for (const Waiters& others : stuck) {
      const auto same = [&](const Waiters& known) { return known.operation == others.operation; };
      if (WaitsFor(some, others).empty() || std::any_of(found.begin(), found.end(), same)) continue;
      found.push_back(others);
      open.push_back(others);
    }
  }
  return found;
}

/// Ranks each of which has to go on before any other one can. None of them when all of their
/// operations are named: other threads may submit those, and the stall rules see to them. Who waits
/// for these ranks is not among them: it goes on after they have failed.
std::vector<Coordinator::Waiters> Coordinator::Deadlock() const {
  const std::vector<Waiters> stuck = BlockedRanks();
  for (const Waiters& some : stuck) {
    if (!IsOfRound(some.operation)) continue;
    std::vector<Waiters> core = WaitedFor(some, stuck);
    const bool closed = std::all_of(core.begin(), core.end(), [&](const Waiters& other) {
      const std::vector<Waiters> back = WaitedFor(other, stuck);
      return std::any_of(back.begin(), back.end(),
                         [&](const Waiters& known) { return known.operation == some.operation; });
    });
    if (closed && !core.empty()) return core;
  }
  return {};
}

void Coordinator::FailDeadlock(const std::vector<Waiters>& deadlock, Effects& effects) {
  RankSet blocked(size_);
  for (const Waiters& some : deadlock) blocked.InsertAll(some.ranks);
  std::vector<BlockedVariant> variants;
  for (const Waiters& some : deadlock) {
    const Record& record = records_[some.operation];
    RankSet ranks = record.announced;  // also those that are about to say that they are blocked
    ranks.EraseAll(blocked);
    ranks.InsertAll(some.ranks);
    variants.push_back({{records_.name(some.operation), LatestSignature(some.operation).kind, ranks,
                         record.sites.ToString(ranks)},
                        sets_.Suffix(record.set)});
  }
  const Status error = DeadlockError(std::move(variants));
  for (const Waiters& some : deadlock) {
    // The end of a round ends all operations of it.
    if (records_[some.operation].phase != Phase::kWaiting) continue;
    if (IsOfRound(some.operation)) {
      EndRound(records_[some.operation].set, error);
    } else {
      Fail(some.operation, error, effects);
    }
  }
}

/// Which unnamed operations belong together is unknown from here on: all that wait fail, and all
/// members count from zero again.
void Coordinator::EndRound(ProcessSetId id, const Status& error) {
  NoteOther();
  // Members fail what is in flight after the batches of this decision.
  for (const auto& tensors : batcher_.TakeAll()) Dispatch(tensors);
  for (Index index = oldest_; index != kNoIndex;) {
    const Index next = records_[index].newer;
    if (records_[index].set == id && IsOfRound(index)) {
      Unlink(index);
      DropInstance(index);
    }
    index = next;
  }
  wire::Decide& decide = Building();
  building_bytes_ += error.message().size();
  decide.failures.push_back({"", error, id});
  sets_.Find(id)->round_decided = decide.number;
}

}  // namespace hvl::plan
