#include "csrc/engine/registry.h"

#include <utility>

#include "csrc/base/str.h"

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
void Registry::NameLocked(Handle::State& state) {
  const OpKind kind = state.operation.kind;
  std::uint64_t& count = unnamed_counts_[{state.operation.process_set, kind}];
  state.operation.name = Format("{}.noname.{}", OpKindName(kind), count++);
  state.submission.signature.name = state.operation.name;
  state.submission.transient = true;
}

Status Registry::Admit(const StatePtr& state) {
  const MutexLock lock(mutex_);
  if (!closed_.ok()) return closed_;
  if (names_.size() >= max_outstanding_) {
    return Status(StatusCode::kResourceExhausted,
                  Format("{} operations are in flight, which is the limit; wait for some of them, "
                         "or raise HVL_MAX_OUTSTANDING",
                         names_.size()));
  }
  if (state->operation.name.empty()) NameLocked(*state);
  if (!names_.emplace(state->operation.process_set, state->operation.name).second)
    return DuplicateName(state->operation);
  queued_.push_back(state);
  submitted_.fetch_add(1, std::memory_order_relaxed);
  queued_count_.store(queued_.size());
  return Status::Ok();
}

void Registry::Await(StatePtr state) {
  const MutexLock lock(mutex_);
  if (!closed_.ok() || state->done()) return;
  awaited_.push_back(std::move(state));
  has_awaited_.store(true);
}

void Registry::Take(std::vector<StatePtr>& taken, std::vector<StatePtr>& awaited) {
  const MutexLock lock(mutex_);
  queued_.swap(taken);
  awaited_.swap(awaited);
  queued_count_.store(0);
  has_awaited_.store(false);
}

void Registry::Finish(std::vector<StatePtr>& ended) {
  if (ended.empty()) return;
  {
    const MutexLock lock(mutex_);
    for (const StatePtr& state : ended) {
      names_.erase({state->operation.process_set, state->operation.name});
    }
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

Status Registry::health() const {
  const MutexLock lock(mutex_);
  return closed_;
}

}  // namespace hvl::engine
