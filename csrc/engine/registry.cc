#include "csrc/engine/registry.h"

#include <iterator>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/engine/validate.h"

namespace hvl::engine {
namespace {

Status DuplicateName(const Operation& operation) {
  return Status(StatusCode::kInvalidArgument,
                Format("{} '{}': a tensor with the same name as another tensor that is currently "
                       "being processed was submitted; wait for the first one, or use a different "
                       "name",
                       OpKindName(operation.kind), operation.name));
}

}  // namespace

// Unnamed operations are paired by the order of their submission, so only admitted ones count.
void Registry::NameLocked(Handle::State& state, wire::Signature& signature) {
  const OpKind kind = state.operation.kind;
  const ProcessSetId set = state.operation.process_set;
  const std::uint64_t number = unnamed_counts_[{set, kind}]++;
  const auto round = rounds_.find(set);
  if (round == rounds_.end() || kind == OpKind::kJoin) {
    state.SetName(Format("{}.noname.{}", OpKindName(kind), number));
  } else {
    // What runs of the round before has its names still.
    state.SetName(Format("{}.noname.{}.{}", OpKindName(kind), round->second, number));
    state.submission.round = round->second;
  }
  signature.name = state.operation.name;
  state.submission.transient = true;
}

/// The name is not in flight.
void Registry::QueueLocked(const StatePtr& state, KnownNames::value_type& name) {
  name.second.in_flight = true;
  state->known_name = &name;
  submitters_.Note(std::this_thread::get_id());
  if (state->submission.transient) unnamed_submitters_.Note(std::this_thread::get_id());
  ++in_flight_;
  queued_.push_back(state);
  submitted_.fetch_add(1, std::memory_order_relaxed);
  queued_count_.store(queued_.size());
}

/// Programs that make up new names for ever leave old ones behind. They go all together, which
/// costs little per name; those that come again after all are checked as if they were new.
void Registry::MakeRoomLocked() {
  constexpr std::size_t kMostRemembered = 65536;
  if (names_.size() - in_flight_ < kMostRemembered) return;
  std::erase_if(names_, [](const auto& name) { return !name.second.in_flight; });
}

bool Registry::AdmitAgain(const StatePtr& state) {
  const NameView key{state->operation.process_set, state->operation.name};
  const MutexLock lock(mutex_);
  const auto found = names_.find(key);
  if (found == names_.end() || !closed_.ok() || in_flight_ >= max_outstanding_) return false;
  const KnownName& known = found->second;
  if (known.in_flight || !IsLike(state->operation, *known.signature)) return false;
  state->submission.signature = known.signature;
  QueueLocked(state, *found);
  return true;
}

Status Registry::Admit(const StatePtr& state, wire::Signature signature) {
  const MutexLock lock(mutex_);
  if (!closed_.ok()) return closed_;
  if (in_flight_ >= max_outstanding_) {
    return Status(StatusCode::kResourceExhausted,
                  Format("{} operations are in flight, which is the limit; wait for some of them, "
                         "or raise HVL_MAX_OUTSTANDING",
                         in_flight_));
  }
  if (state->operation.name.empty()) NameLocked(*state, signature);
  MakeRoomLocked();
  const auto name =
      names_.try_emplace(Name{state->operation.process_set, state->operation.name}).first;
  if (name->second.in_flight) return DuplicateName(state->operation);
  state->submission.signature = std::move(signature);
  if (!state->submission.transient) name->second.signature = state->submission.signature;
  QueueLocked(state, *name);
  return Status::Ok();
}

void Registry::Await(StatePtr state, bool blocks) {
  const MutexLock lock(mutex_);
  if (!closed_.ok() || state->done()) return;
  awaited_.emplace_back(std::move(state), blocks ? std::this_thread::get_id() : std::thread::id());
  has_awaited_.store(true);
}

plan::Waiter Registry::WaiterLocked(std::thread::id blocked) const {
  if (blocked == std::thread::id()) return plan::Waiter::kAny;
  if (submitters_.IsOnly(blocked)) return plan::Waiter::kAlone;
  if (unnamed_submitters_.IsOnly(blocked)) return plan::Waiter::kUnnamed;
  return plan::Waiter::kAny;
}

// Who waits is judged only now, when it is known who has submitted what is taken with it.
void Registry::Take(std::vector<StatePtr>& taken, std::vector<Awaited>& awaited) {
  const MutexLock lock(mutex_);
  queued_.swap(taken);
  for (auto& [state, blocked] : awaited_) {
    awaited.push_back({std::move(state), WaiterLocked(blocked)});
  }
  awaited_.clear();
  queued_count_.store(0);
  has_awaited_.store(false);
}

void Registry::EndLocked(Handle::State& state) {
  KnownName& known = state.known_name->second;
  known.in_flight = false;
  --in_flight_;
  if (known.signature.empty()) names_.erase(state.known_name->first);
  state.known_name = nullptr;
}

void Registry::Finish(std::vector<StatePtr>& ended) {
  if (ended.empty()) return;
  {
    const MutexLock lock(mutex_);
    for (const StatePtr& state : ended) EndLocked(*state);
  }
  completed_.fetch_add(ended.size(), std::memory_order_relaxed);
  for (const StatePtr& state : ended) state->Publish();
  ended.clear();
}

std::vector<StatePtr> Registry::Close(const Status& cause) {
  std::vector<StatePtr> left;
  const MutexLock lock(mutex_);
  if (!closed_.ok()) return left;
  closed_ = cause;
  queued_count_.store(0);
  has_awaited_.store(false);
  awaited_.clear();  // they hold the engine, and so this list
  left.swap(queued_);
  return left;
}

void Registry::ForgetUnnamed(ProcessSetId id) {
  const MutexLock lock(mutex_);
  unnamed_counts_.erase(unnamed_counts_.lower_bound({id, OpKind{}}),
                        unnamed_counts_.lower_bound({id + 1, OpKind{}}));
}

void Registry::EndRound(ProcessSetId id) {
  const MutexLock lock(mutex_);
  ++rounds_[id];
  std::erase_if(unnamed_counts_, [id](const auto& count) {
    return count.first.first == id && count.first.second != OpKind::kJoin;
  });
}

void Registry::ForgetSet(ProcessSetId id) {
  ForgetUnnamed(id);
  const MutexLock lock(mutex_);
  rounds_.erase(id);
  for (auto name = names_.begin(); name != names_.end();) {
    const bool of_set = name->first.set == id;
    if (of_set) name->second.signature = {};  // goes at its end if it is in flight
    name = of_set && !name->second.in_flight ? names_.erase(name) : std::next(name);
  }
}

Status Registry::health() const {
  const MutexLock lock(mutex_);
  return closed_;
}

}  // namespace hvl::engine
