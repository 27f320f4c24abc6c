// What the copies of a Handle share: one operation from its admission to its outcome.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/mutex.h"
#include "csrc/engine/names.h"
#include "csrc/plan/planner.h"
#include "horovodlite/session.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::engine {
class Core;
enum class TracePhase : std::uint8_t { kNone, kQueued, kRunning };
}  // namespace hvl::engine

namespace hvl {

/// An operation consists of parts, one per tensor (one without a tensor has one). Each part ends
/// exactly once, either with its batch or by an error before it; the operation is done when all
/// have ended.
class Handle::State : public std::enable_shared_from_this<Handle::State> {
 public:
  State(Operation&& arguments, std::shared_ptr<engine::Core> core);
  State(std::shared_ptr<const Operation> arguments, std::shared_ptr<engine::Core> core);
  ~State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  int part_count() const { return part_count_; }
  engine::Core& core() const { return *core_; }
  /// Of an operation that is not shared.
  void SetName(std::string name);

  /// Ends `count` parts; the first error becomes the outcome. True for the call that ended the last
  /// one: it must see to it that Publish is called. Whoever owns the parts calls.
  bool EndParts(int count, const Status& status);

  /// Makes the outcome visible and wakes the waiters. Nothing may touch the operation's memory
  /// after it.
  void Publish();

  bool done() const { return phase_.load(std::memory_order_acquire) == kDone; }
  const Status& outcome() const { return outcome_; }  ///< requires done()
  /// Sleeps until done or `deadline`; returns done().
  bool SleepUntilDone(TimePoint deadline);

  // Fixed once admitted. The name is given at the latest by then.
  const Operation& operation;
  engine::KnownNames::value_type* known_name = nullptr;  ///< the registry's, while in flight

  // Moves with the operation: from the caller to the coordinator role, then to the executor role.
  plan::Submission submission;           ///< until the planner takes it
  int undispatched_parts = 0;            ///< coordinator role
  std::vector<GatheredTensor> gathered;  ///< executor role, then read by waiters
  std::uint64_t trace_epoch = 0;         ///< which timeline has seen the operation; 0 = none
  engine::TracePhase trace_phase = engine::TracePhase::kNone;

 private:
  void Begin();

  static constexpr std::uint32_t kPending = 0, kPendingWithSleepers = 1, kDone = 2;

  Operation own_;                                  ///< unless it is shared
  const std::shared_ptr<const Operation> shared_;  // with the caller
  const std::shared_ptr<engine::Core> core_;       // shared by all handles and the engine
  const int part_count_;
  std::atomic<int> open_parts_;
  Mutex mutex_;
  Status outcome_;  ///< written under mutex_ while parts are open, constant afterwards
  std::atomic<std::uint32_t> phase_{kPending};
};

}  // namespace hvl
