// The one place where hvlrun waits: epoll, with a token per descriptor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/net/fd.h"
#include "horovodlite/status.h"

namespace hvl::launcher {

/// What a descriptor is for, and which one of its kind.
struct Token {
  enum class Kind : std::uint8_t {
    kFront,
    kChildren,
    kRank,
    kStream,
    kSink,
    kAgentIn,     ///< from an agent, or its head
    kAgentOut,    ///< to it
    kAgentError,  ///< what the program says that has started an agent
    kDoor,        ///< where agents come in by themselves
    kGuest,       ///< one that has come in and is not known yet
  };
  Kind kind = Kind::kFront;
  std::uint32_t index = 0;
};

class Poller {
 public:
  static Result<Poller> Create();

  /// False when this kind of descriptor cannot be waited for (a file, say): it is always ready.
  [[nodiscard]] bool WatchReadable(int fd, Token token);
  [[nodiscard]] bool WatchWritable(int fd, Token token);
  void Forget(int fd);

  /// Those that are ready, in the order in which they became so; waits until `deadline`, or for
  /// ever.
  std::vector<Token> Wait(std::optional<TimePoint> deadline);

 private:
  explicit Poller(net::UniqueFd epoll) : epoll_(std::move(epoll)) {}
  bool Watch(int fd, std::uint32_t events, Token token);

  net::UniqueFd epoll_;
};

}  // namespace hvl::launcher
