// Timeline events of operations, with Horovod's names. Costs one load while no timeline is written.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "csrc/base/clock.h"
#include "csrc/base/mutex.h"
#include "csrc/engine/handle_state.h"
#include "csrc/plan/planner.h"
#include "csrc/trace/trace.h"

namespace hvl::engine {

/// An operation's row: NEGOTIATE_ALLREDUCE (with one instant per rank that is ready, on the
/// coordinating rank), QUEUE, then for each batch ALLREDUCE and inside it LOCAL_ALLREDUCE.
class Tracer {
 public:
  Tracer(const Clock& clock, bool coordinates) : clock_(clock), coordinates_(coordinates) {}

  /// Any thread. Null = stop. Events of operations that are under way at this moment are left out.
  void Set(std::shared_ptr<trace::Sink> sink, bool mark_cycles);
  bool on() const { return epoch_.load(std::memory_order_relaxed) % 2 == 1; }

  // Coordinator role.
  void Cycle();
  void Submitted(const Handle::State& state);
  void Ready(const plan::ReadyNote& note);
  /// With the operation's first batch, before it is handed to the executor role.
  void Dispatched(Handle::State& state);
  void EndedUnplanned(const Handle::State& state);

  // Executor role, around each batch that holds parts of the operation.
  void Running(Handle::State& state, std::string_view backend);
  void Ran(Handle::State& state);

 private:
  struct Current {
    std::shared_ptr<trace::Sink> sink;  // shared with the session, which may replace it any time
    std::uint64_t epoch = 0;
    bool mark_cycles = false;
  };
  Current Get() const;
  void BeginNegotiation(const Current& current, OpKind kind, const std::string& name);
  void EndNegotiation(const Current& current, const std::string& name);

  const Clock& clock_;
  const bool coordinates_;

  /// Odd while tracing; every change of sink makes a new epoch, so that no event of one timeline
  /// ends up in the next.
  std::atomic<std::uint64_t> epoch_{0};
  mutable Mutex mutex_;
  std::shared_ptr<trace::Sink> sink_ HVL_GUARDED_BY(mutex_);  // see Current
  bool mark_cycles_ HVL_GUARDED_BY(mutex_) = false;

  // Coordinator role: operations between the first announcement and their dispatch.
  std::unordered_set<std::string> negotiating_;
  std::uint64_t negotiating_epoch_ = 0;
};

}  // namespace hvl::engine
