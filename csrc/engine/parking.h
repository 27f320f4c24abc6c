// Where the threads of the engine rest. The rule that loses no work: the resting thread announces
// its rest *before* it looks for work a last time; whoever makes work does so *before* reading the
// announcement. All accesses are sequentially consistent, so at least one of them sees the other.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

#include "csrc/base/clock.h"
#include "csrc/base/mutex.h"
#include "csrc/engine/futex.h"
#include "csrc/net/mesh.h"

namespace hvl::engine {

/// The executor thread's place: it rests until woken.
class ExecutorRest {
 public:
  /// Executor thread. Returns at once if `has_work()`; may return early for no reason.
  template <typename Predicate>
  void Rest(const Predicate& has_work) {
    mode_.store(kResting);
    if (!has_work()) FutexWait(mode_, kResting, std::nullopt);
    mode_.store(kAwake);
  }
  /// Any thread. A load when it is awake.
  void Wake() {
    if (mode_.load() == kResting && mode_.exchange(kAwake) == kResting) FutexWakeAll(mode_);
  }

 private:
  static constexpr std::uint32_t kAwake = 0, kResting = 1;
  std::atomic<std::uint32_t> mode_{kAwake};
};

/// The coordinator thread's place: asleep on the links while nobody drives; napping there, when it
/// need not be woken for submissions because it soon looks for them by itself; or parked, deaf to
/// messages, while waiting threads drive: a message to them should not wake it.
class CoordinatorRest {
 public:
  explicit CoordinatorRest(net::Mesh& mesh) : mesh_(&mesh) {}

  /// Coordinator thread. Until a message, Wake or `deadline` (max = never); returns at once if
  /// `has_work()`; may return early for no reason.
  template <typename Predicate>
  void Sleep(TimePoint deadline, TimePoint now, const Predicate& has_work) {
    RestOnLinks(kAsleep, deadline, now, has_work);
  }
  /// As Sleep, but does not count as asleep().
  template <typename Predicate>
  void Nap(TimePoint deadline, TimePoint now, const Predicate& has_work) {
    RestOnLinks(kNapping, deadline, now, has_work);
  }

  /// Coordinator thread. As Sleep, but messages do not end it. True when nobody ended it.
  template <typename Predicate>
  bool Park(Duration timeout, const Predicate& has_work) {
    const TimePoint until = SteadyClock().Now() + timeout;
    rests_until_.store(until);
    mode_.store(kParked);
    if (!has_work()) FutexWait(mode_, kParked, until);
    return mode_.exchange(kAwake) == kParked;
  }

  /// Any thread. A load when the thread is awake, so that a burst of submissions wakes it once.
  void Wake() {
    if (mode_.load() != kAwake) WakeSlowly();
  }
  /// Any thread: it has been told to sleep longer than until `deadline`.
  bool SleepsBeyond(TimePoint deadline) const {
    const std::uint32_t mode = mode_.load();
    return (mode == kAsleep || mode == kNapping) && rests_until_.load() > deadline;
  }
  /// Any thread: it will be parked for more than `time` from now.
  bool ParkedFor(Duration time) const {
    return mode_.load() == kParked && rests_until_.load() > SteadyClock().Now() + time;
  }
  bool parked() const { return mode_.load() == kParked; }
  bool asleep() const { return mode_.load() == kAsleep; }

  /// The coordinator thread has ended; the links go away.
  void Close();

 private:
  static constexpr std::uint32_t kAwake = 0, kParked = 1, kAsleep = 2, kNapping = 3;

  template <typename Predicate>
  void RestOnLinks(std::uint32_t mode, TimePoint deadline, TimePoint now,
                   const Predicate& has_work) {
    rests_until_.store(deadline);
    mode_.store(mode);
    if (!has_work()) mesh_->Sleep(TimeLeft(deadline, now));
    mode_.store(kAwake);
  }

  static Duration TimeLeft(TimePoint deadline, TimePoint now) {
    if (deadline == TimePoint::max()) return Duration::max();
    return std::max<Duration>(deadline - now, Duration::zero());
  }
  void WakeSlowly();

  std::atomic<std::uint32_t> mode_{kAwake};
  std::atomic<TimePoint> rests_until_{TimePoint::max()};
  net::Mesh* const mesh_;
  /// Held while another thread uses the links to wake this one, so that they do not go meanwhile.
  Mutex mutex_;
};

}  // namespace hvl::engine
