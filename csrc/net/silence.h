// When a host that others try to reach, while the links are being made, is to be taken for dead. Of
// links that carry heartbeats, heartbeats.h judges; of connections that stand, the kernel
// (LimitSilence): it answers for a process that computes, waits or is stopped.
#pragma once

#include <string_view>

#include "csrc/base/clock.h"
#include "csrc/base/str.h"
#include "horovodlite/status.h"

namespace hvl::net {

/// Attempts to connect that a host has answered in no way, not even by a refusal. A lost packet
/// matters little, and who was stopped himself accuses nobody of his own absence: it takes both the
/// time and several attempts. No IO and no clock of its own.
class Unanswered {
 public:
  /// Zero: nobody is ever judged.
  explicit Unanswered(Duration limit) : limit_(limit) {}

  Duration limit() const { return limit_; }
  bool judges() const { return limit_ > Duration::zero(); }
  /// Something has been asked since the last answer.
  bool asking() const { return attempts_ > 0; }
  /// An attempt begins.
  void Ask(TimePoint now) {
    if (attempts_++ == 0) since_ = now;
    attempt_end_ = now + limit_ / kAttempts;
  }
  void Answered() { attempts_ = 0; }
  /// When to give up the present attempt and to begin another.
  TimePoint attempt_end() const { return judges() && asking() ? attempt_end_ : TimePoint::max(); }
  bool TooLong(TimePoint now) const {
    return judges() && attempts_ >= kAttempts && now - since_ >= limit_;
  }

 private:
  static constexpr int kAttempts = 4;

  Duration limit_;
  int attempts_ = 0;
  TimePoint since_, attempt_end_;
};

/// The Unavailable of who waits for `rank`.
inline Status SilentHost(int rank, std::string_view doing, Duration limit) {
  const double seconds = std::chrono::duration<double>(limit).count();
  return {StatusCode::kUnavailable,
          Format("rank {} was lost while the ranks were {}: its host has shown no sign of life for "
                 "{:.3g} s. If it lives, look at the network between the hosts; HVL_HOST_TIMEOUT "
                 "allows more silence",
                 rank, doing, seconds),
          rank};
}

}  // namespace hvl::net
