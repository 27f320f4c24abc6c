// The operations in flight on this rank: their names, how many there are, and those that the
// coordinator role has not taken yet. Remembers what it knows of names that come again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/mutex.h"
#include "csrc/engine/handle_state.h"
#include "csrc/engine/names.h"
#include "csrc/plan/planner.h"
#include "csrc/wire/messages.h"
#include "horovodlite/status.h"

namespace hvl::engine {

using StatePtr = std::shared_ptr<Handle::State>;  // shared by handles and the role that works on it

/// Somebody waits for an operation.
struct Awaited {
  StatePtr state;
  plan::Waiter waiter = plan::Waiter::kAny;
};

/// Thread-safe. The mutex is held for a few instructions only.
class Registry {
 public:
  explicit Registry(std::size_t max_outstanding) : max_outstanding_(max_outstanding) {}

  /// Names the operation if need be and queues it with its signature; or says why not (name in
  /// flight, too many, ended).
  Status Admit(const StatePtr& state, wire::Signature signature);
  /// Queues an operation that is like the last one of its name: it needs no check but that of its
  /// memory, and gets the signature of that one. False when it is not, or anything else is in the
  /// way; then nothing has happened.
  bool AdmitAgain(const StatePtr& state);
  /// The calling thread waits for this operation. `blocks`: it does nothing else until it is done;
  /// not so: until a time, or not any more.
  void Await(StatePtr state, bool blocks);
  /// What was admitted and what is awaited since the last call, oldest first, into empty lists.
  void Take(std::vector<StatePtr>& taken, std::vector<Awaited>& awaited);
  /// Frees the names of operations whose last part has ended, then publishes their outcomes.
  /// Empties the list.
  void Finish(std::vector<StatePtr>& ended);
  /// From now on Admit returns `cause`. Returns what was queued. The first cause counts.
  std::vector<StatePtr> Close(const Status& cause);

  /// Unnamed operations of the process set count from zero again: it is gone, or all its ranks have
  /// joined, having submitted different numbers of them.
  void ForgetUnnamed(ProcessSetId id);
  /// So do those but joins, in a new round; see plan::Effects::ended_rounds.
  void EndRound(ProcessSetId id);
  /// The process set is gone: none of its operations is like one before.
  void ForgetSet(ProcessSetId id);

  /// OK until Close.
  Status health() const;
  /// True when Take would return something.
  bool has_queued() const { return queued_count_.load() > 0 || has_awaited_.load(); }
  /// True when Take would return something that can start anything, as far as is known.
  bool has_enough() const { return queued_count_.load() >= needed_.load() || has_awaited_.load(); }
  /// True when a thread waits for one of them and does nothing else meanwhile.
  bool has_awaited() const { return has_awaited_.load(); }
  /// How many operations have to come, at least, before anything can start: 1 or more.
  /// Coordinator role.
  void SetNeeded(std::size_t count) {
    if (needed_.load(std::memory_order_relaxed) != count) needed_.store(count);
  }
  std::uint64_t submitted() const { return submitted_.load(std::memory_order_relaxed); }
  std::uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }

 private:
  void NameLocked(Handle::State& state, wire::Signature& signature) HVL_REQUIRES(mutex_);
  void QueueLocked(const StatePtr& state, KnownNames::value_type& name) HVL_REQUIRES(mutex_);
  void EndLocked(Handle::State& state) HVL_REQUIRES(mutex_);
  void MakeRoomLocked() HVL_REQUIRES(mutex_);
  plan::Waiter WaiterLocked(std::thread::id blocked) const HVL_REQUIRES(mutex_);

  const std::size_t max_outstanding_;

  mutable Mutex mutex_;
  Status closed_ HVL_GUARDED_BY(mutex_);
  KnownNames names_ HVL_GUARDED_BY(mutex_);
  std::size_t in_flight_ HVL_GUARDED_BY(mutex_) = 0;
  std::vector<StatePtr> queued_ HVL_GUARDED_BY(mutex_);
  /// With the thread that is blocked, or none.
  std::vector<std::pair<StatePtr, std::thread::id>> awaited_ HVL_GUARDED_BY(mutex_);
  std::map<std::pair<ProcessSetId, OpKind>, std::uint64_t> unnamed_counts_ HVL_GUARDED_BY(mutex_);
  std::map<ProcessSetId, std::uint64_t> rounds_ HVL_GUARDED_BY(mutex_);  // that have ended

  /// Threads that have submitted operations: none, one, or several.
  struct Submitters {
    std::thread::id first;
    bool several = false;

    void Note(std::thread::id thread) {
      if (first == std::thread::id()) first = thread;
      several = several || first != thread;
    }
    bool IsOnly(std::thread::id thread) const { return first == thread && !several; }
  };
  Submitters submitters_ HVL_GUARDED_BY(mutex_);
  Submitters unnamed_submitters_ HVL_GUARDED_BY(mutex_);

  std::atomic<std::size_t> queued_count_{0}, needed_{1};
  std::atomic<bool> has_awaited_{false};
  std::atomic<std::uint64_t> submitted_{0}, completed_{0};
};

}  // namespace hvl::engine
