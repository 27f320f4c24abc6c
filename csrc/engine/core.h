// What engine, handles and threads share: the two roles, who serves them when, and how work finds
// its way to them. docs/threads.md has the whole picture and the arguments.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/base/mutex.h"
#include "csrc/collective/backend.h"
#include "csrc/engine/batch_queue.h"
#include "csrc/engine/coordinator.h"
#include "csrc/engine/counters.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/executor.h"
#include "csrc/engine/fork_guard.h"
#include "csrc/engine/handle_state.h"
#include "csrc/engine/parking.h"
#include "csrc/engine/process_sets.h"
#include "csrc/engine/registry.h"
#include "csrc/engine/role.h"
#include "csrc/engine/state_pool.h"
#include "csrc/engine/tracer.h"
#include "csrc/net/mesh.h"
#include "csrc/plan/planner.h"
#include "horovodlite/session.h"
#include "horovodlite/status.h"

namespace hvl::engine {

/// Shared by the engine and all handles, because a handle may outlive the engine. After Stop it is
/// a shell: threads, links, planner and data plane are gone.
class Core final : public std::enable_shared_from_this<Core> {
 public:
  Core(Options options, std::unique_ptr<net::Mesh> mesh, std::unique_ptr<plan::Planner> planner,
       std::unique_ptr<collective::Backend> backend, Logger logger, const Clock& clock);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  /// ResourceExhausted when the system gives no threads; then call Stop.
  Status StartThreads();
  void KeepTo(std::thread* thread, int processor);

  // Any thread; see Engine and Handle.
  Result<Handle> Submit(Operation&& operation, bool caller_waits);
  Result<Handle> Submit(std::shared_ptr<const Operation> operation, bool caller_waits);
  Result<ProcessSetId> AddProcessSet(std::vector<int> ranks, const Interrupted& interrupted);
  Status RemoveProcessSet(ProcessSetId id, const Interrupted& interrupted);
  Result<std::vector<int>> ProcessSetRanks(ProcessSetId id) const;
  Status Wait(Handle::State& state, const Interrupted& interrupted);
  Status WaitUntil(Handle::State& state, TimePoint deadline);
  /// Somebody wants to know of an operation that is not done: nothing may lie in the queue then.
  void NoteAsked();
  Result<SharedBuffer> Allocate(std::size_t bytes);
  void Stop() HVL_ATTRIBUTE(no_thread_safety_analysis);  // has both roles, for ever
  Status health() const;
  SessionCounters counters() const;
  void SetTrace(std::shared_ptr<trace::Sink> sink, bool mark_cycles);
  /// True in a forked child, which must not use this object.
  bool in_child() const { return fork_guard_.InChild(); }
  /// The error of every call in a forked child.
  static Status ChildError();

 private:
  /// A change of the process sets that has been submitted.
  struct SetChange {
    ProcessSetId id = kWorldSet;
    std::vector<int> ranks;                ///< empty = removal
    std::shared_ptr<Handle::State> state;  // shared with the pipeline
  };

  /// The state of an operation, given as Handle::State takes it.
  template <typename Arguments>
  StatePtr NewState(Arguments&& arguments);
  Result<Handle> Submit(StatePtr state, bool caller_waits);
  /// Checks an operation of which nothing is known, and admits it.
  Status Admit(const StatePtr& state);

  /// Begins to negotiate a change.
  Status SubmitSetChange(ProcessSetId id, std::vector<int> ranks) HVL_REQUIRES(sets_mutex_);
  /// Waits for it; Aborted when interrupted, and then it stays.
  Status FinishSetChange(const Interrupted& interrupted) HVL_REQUIRES(sets_mutex_);
  /// Waits for one whose caller was interrupted, if there is any.
  Status FinishEarlierSetChange(const Interrupted& interrupted) HVL_REQUIRES(sets_mutex_);

  // Threads hvl-coord and hvl-exec. Each ends with its role in its hands, which the analysis cannot
  // follow through the start of a thread.
  void CoordinatorThread() HVL_ATTRIBUTE(no_thread_safety_analysis);
  void CoordinateUntilStopped();
  void SayFarewell() HVL_REQUIRES(coordinator_role_);
  void ExecutorThread() HVL_ATTRIBUTE(no_thread_safety_analysis);

  // Waiting threads. `blocks`: the thread does nothing else until the operation is done. Await
  // returns early now and then; without a deadline the thread may run what takes long.
  void Await(Handle::State& state, std::optional<TimePoint> deadline, bool blocks);
  void Drive(Handle::State& state, std::optional<TimePoint> deadline);
  bool TryExecute(const Handle::State& state, std::optional<std::size_t> max_bytes);
  void EnterDriving();
  void LeaveDriving();

  // Both.
  bool TryCoordinate();
  void TryLocalWork();
  void WakeCoordinatorForWork();
  bool HasCoordinatorWork() const;
  bool NeedsCoordinator() const;
  void WakeExecutorIfNeeded();

  // Fixed.
  const Duration spin_, keep_core_;  ///< see Options
  const std::optional<int> thread_processor_;
  const Logger logger_;
  const Clock& clock_;
  const int rank_, size_;
  const ForkGuard fork_guard_;

  // Reset at the end of Stop, when the threads have kept both roles for ever.
  std::unique_ptr<net::Mesh> mesh_;
  std::unique_ptr<plan::Planner> planner_;
  std::unique_ptr<collective::Backend> backend_;
  Mutex backend_mutex_;  ///< against Allocate from any thread while backend_ goes

  // Self-synchronised.
  const std::shared_ptr<StatePool> states_ = std::make_shared<StatePool>();  // shared with handles
  Registry registry_;
  ProcessSets sets_;
  BatchQueue queue_;
  Tracer tracer_;
  Counters counters_;
  CoordinatorNews news_;
  CoordinatorRest coordinator_rest_;
  ExecutorRest executor_rest_;

  // Owned by roles.
  Role coordinator_role_, executor_role_;
  Coordinator coordinator_ HVL_GUARDED_BY(coordinator_role_);
  Executor executor_ HVL_GUARDED_BY(executor_role_);

  /// Threads that drive now: each promises to look for work, and to wake the thread that should do
  /// it, before it stops driving.
  std::atomic<int> drivers_{0};
  std::atomic<std::uint64_t> drives_{0};  ///< how often driving began
  std::atomic<int> sleepers_{0};          ///< threads asleep on a handle: they rely on the threads
  std::atomic<bool> stopping_{false};

  Mutex sets_mutex_;  ///< held while a process set is added or removed: one after the other
  ProcessSetId last_set_ HVL_GUARDED_BY(sets_mutex_) = kWorldSet;
  std::uint64_t set_changes_ HVL_GUARDED_BY(sets_mutex_) = 0;
  /// What is negotiated now, also when its caller was interrupted.
  std::optional<SetChange> set_change_ HVL_GUARDED_BY(sets_mutex_);

  Mutex stop_mutex_;
  bool stopped_ HVL_GUARDED_BY(stop_mutex_) = false;
  std::thread coordinator_thread_, executor_thread_;
};

}  // namespace hvl::engine
