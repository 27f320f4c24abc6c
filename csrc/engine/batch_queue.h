// The way of a batch from the coordinator role to the executor role, and the news of its end back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/mutex.h"
#include "csrc/engine/registry.h"
#include "csrc/plan/planner.h"
#include "horovodlite/status.h"

namespace hvl::engine {

/// A batch with the operations whose tensors it holds: operations[i] belongs to plan.entries[i],
/// and is null where this rank has joined and contributes zeros.
struct Work {
  plan::Batch plan;
  std::vector<StatePtr> operations;
  std::size_t bytes = 0;  ///< of this rank's tensors
  TimePoint dispatched_at{};
};

/// The tensors of an entry, which belongs to this operation.
inline std::span<const TensorArg> TensorsOf(const plan::BatchEntry& entry,
                                            const Handle::State& state) {
  const std::span<const TensorArg> all = state.operation.tensors;
  return all.empty() ? all : all.subspan(entry.first_tensor, entry.tensor_count);
}

/// The data plane's numbers of gates go up from plan to plan and within each.
constexpr std::uint64_t GateNumber(std::uint32_t plan, std::uint64_t count) {
  return std::uint64_t{plan} << 40 | count;
}

/// Thread-safe. First in, first out; sequence numbers go up, and leave out the
/// batches of process sets that this rank is no member of.
class BatchQueue {
 public:
  // Coordinator role.

  /// False when the queue is closed; then the work stays with the caller.
  [[nodiscard]] bool Push(Work&& work);
  /// The last batch that has run well.
  std::uint64_t TakeFinished();
  /// Why the data plane stopped; each failure is told once, OK = none to tell. The failed batch
  /// stays here until Close.
  Status TakeFailure();
  /// Drops the batches after `sequence`, except one that the executor role has in hand: the data
  /// plane calls that one back, from a gate from `first_gate` to `last_gate`. Their parts are in no
  /// batch any more.
  void Withdraw(std::uint64_t sequence, std::uint64_t first_gate, std::uint64_t last_gate);
  /// Nothing runs any more: returns the failed batch and those that waited.
  std::vector<Work> Close(const Status& cause);

  // Any thread.

  /// TakeFinished or TakeFailure would tell something new.
  bool has_news() const;
  bool has_failure() const { return has_failure_.load(); }
  bool has_ready() const { return ready_count_.load() > 0; }

  // Executor role.

  /// The next batch, if it has at most `max_bytes`.
  std::optional<Work> Pop(std::size_t max_bytes);
  /// The batch that was popped last comes first again, unless it has been withdrawn meanwhile. When
  /// the queue is closed already: returns the work and its cause.
  std::optional<std::pair<Work, Status>> PutBack(Work work);
  void Finished(const Work& work) { finished_sequence_.store(work.plan.sequence); }
  /// Keeps the batch for the coordinator role, which knows the root cause or waits for it, and
  /// holds back later ones. When the queue is closed already: returns the work and its cause.
  std::optional<std::pair<Work, Status>> Failed(Work work, const Status& error);

 private:
  mutable Mutex mutex_;
  std::deque<Work> ready_ HVL_GUARDED_BY(mutex_);
  std::optional<Work> failed_work_ HVL_GUARDED_BY(mutex_);
  std::uint64_t first_withdrawn_gate_ HVL_GUARDED_BY(mutex_) = 0;
  std::uint64_t last_withdrawn_gate_ HVL_GUARDED_BY(mutex_) = 0;
  Status failure_ HVL_GUARDED_BY(mutex_);
  Status closed_ HVL_GUARDED_BY(mutex_);

  std::atomic<std::size_t> ready_count_{0};
  std::atomic<std::uint64_t> finished_sequence_{0}, taken_sequence_{0};
  std::atomic<bool> has_failure_{false};
};

}  // namespace hvl::engine
