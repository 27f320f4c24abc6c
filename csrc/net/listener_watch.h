// Tells whether a peer on another host still lives, of whom nobody here can watch the process: by a
// connection to its listener that says nothing.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/net/fd.h"
#include "csrc/net/silence.h"
#include "horovodlite/status.h"

namespace hvl::net {

/// The peer closes the connection now and then, as it does with all visitors that say nothing; that
/// it lives shows when the next one stands. When it has died, nobody listens.
class ListenerWatch {
 public:
  /// Zero: its host may be silent for ever.
  ListenerWatch(int peer, std::string address, Duration silence_limit)
      : peer_(peer), address_(std::move(address)), unanswered_(silence_limit) {}

  int peer() const { return peer_; }
  /// To be watched for reading; -1 between attempts.
  int fd() const { return socket_.get(); }
  /// Of the next attempt.
  TimePoint due() const { return socket_.valid() ? unanswered_.attempt_end() : due_; }
  /// Begins an attempt when one is due. Unavailable: the peer has died, or is silent with its host.
  Status Start();
  /// When there is something at fd(). Unavailable: as above.
  Status Look();

 private:
  Status Silent() const;
  Status Again();
  Status Refused(const Status& why);

  int peer_;
  std::string address_;
  UniqueFd socket_;
  Unanswered unanswered_;
  bool has_answered_ = false;
  TimePoint due_{};
  Duration backoff_{};
  std::optional<TimePoint> refused_since_;
};

}  // namespace hvl::net
