// Time as a parameter: rooms take a Clock (or a time point), so that tests can advance it by hand.
#pragma once

#include <chrono>

namespace hvl {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::nanoseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  /// Any thread; monotone; never blocks.
  virtual TimePoint Now() const = 0;
};

/// The machine's monotonic clock. Stateless; lives for the whole process.
const Clock& SteadyClock();

/// A clock that moves only when told. For tests; not thread-safe.
class ManualClock final : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void Advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{};
};

}  // namespace hvl
