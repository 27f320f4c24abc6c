#include "csrc/net/heartbeats.h"

#include <algorithm>
#include <utility>

namespace hvl::net {

Heartbeats::Heartbeats(std::span<const int> peers, Duration silence_limit, Duration start_limit)
    : silence_limit_(silence_limit),
      start_limit_(std::max(start_limit, silence_limit)),
      interval_(silence_limit / 8) {
  for (const int peer : peers) heard_[peer] = {};
}

Duration Heartbeats::Remaining(TimePoint now) const {
  return std::max<Duration>(next_turn_.load(std::memory_order_relaxed) - now, Duration::zero());
}

bool Heartbeats::Heard(int peer, TimePoint now) {
  const auto found = heard_.find(peer);
  if (found == heard_.end()) return false;
  return !std::exchange(found->second, {now, true}).beats;
}

// A process that was stopped itself finds everybody silent, and must not accuse them of its own
// absence: those who live get the time to show it.
std::vector<int> Heartbeats::Turn(TimePoint now) {
  const bool was_absent = now - last_turn_ > silence_limit_ / 2;
  std::vector<int> silent;
  for (auto& [peer, sign] : heard_) {
    if (was_absent) sign.last = now;
    const Duration limit = sign.beats ? silence_limit_ : start_limit_;
    if (now - sign.last > limit) silent.push_back(peer);
  }
  last_turn_ = now;
  next_turn_.store(now + interval_, std::memory_order_relaxed);
  return silent;
}

}  // namespace hvl::net
