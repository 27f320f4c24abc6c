// When to tell the neighbouring hosts that this one lives, and when to take one of them for dead.
// No IO and no clock of its own; a host that only computes is alive, because the runtime's thread
// beats for it.
#pragma once

#include <atomic>
#include <map>
#include <span>
#include <vector>

#include "csrc/base/clock.h"

namespace hvl::net {

/// Beats go out every eighth of the time after which silence counts as death: a lost one matters
/// little. Owned by the thread that polls, but for Remaining.
class Heartbeats {
 public:
  /// A peer that has not begun to beat is setting itself up, which has a longer limit.
  Heartbeats(std::span<const int> peers, Duration silence_limit, Duration start_limit);

  /// Time to the next turn, at least 0. Any thread.
  Duration Remaining(TimePoint now) const;
  /// A proven record has come. True when it was the peer's first.
  bool Heard(int peer, TimePoint now);
  void Forget(int peer) { heard_.erase(peer); }
  /// When a turn is due: returns who has been silent for too long. The caller then beats to all
  /// others. Everything that has arrived must have been Heard before.
  std::vector<int> Turn(TimePoint now);
  bool due(TimePoint now) const { return Remaining(now) == Duration::zero(); }
  Duration silence_limit() const { return silence_limit_; }

 private:
  struct Sign {
    TimePoint last;      ///< of life; the first turn where there was none yet
    bool beats = false;  ///< it has begun
  };

  const Duration silence_limit_, start_limit_, interval_;
  std::map<int, Sign> heard_;
  TimePoint last_turn_{};
  std::atomic<TimePoint> next_turn_{TimePoint{}};
};

}  // namespace hvl::net
