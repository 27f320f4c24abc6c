#include "launcher/join.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/net/handshake.h"
#include "csrc/net/socket.h"
#include "launcher/agent.h"
#include "launcher/door.h"
#include "launcher/errors.h"
#include "launcher/exit_status.h"
#include "launcher/supervision.h"

namespace hvl::launcher {
namespace {

constexpr Duration kRetryInterval = std::chrono::milliseconds(500);
constexpr Duration kConnectLimit = std::chrono::seconds(5);

int Refuse(const std::string& text) {
  const std::string line = Format("hvlrun: {}\n", text);
  [[maybe_unused]] const ssize_t count = ::write(STDERR_FILENO, line.data(), line.size());
  return kExitLauncherError;
}

class Seeker {
 public:
  Seeker(const JoinOptions& options, const net::Secret& secret, int front)
      : options_(options), secret_(secret), front_(front) {}

  struct Found {
    net::UniqueFd connection;
    net::LinkKeys keys;
  };
  /// Mismatch: who answers is no head of ours. Aborted: told to stop. Else what went wrong last.
  Result<Found> Seek() {
    const TimePoint give_up = SteadyClock().Now() + options_.patience;
    for (;;) {
      Result<Found> found = Try();
      if (found.ok() || found.status().code() == StatusCode::kMismatch ||
          found.status().code() == StatusCode::kAborted || SteadyClock().Now() >= give_up) {
        return found;
      }
      HVL_RETURN_IF_ERROR(Wait(-1, 0, SteadyClock().Now() + kRetryInterval));
    }
  }

 private:
  Result<Found> Try() {
    HVL_ASSIGN_OR_RETURN(const std::vector<net::SocketAddress> addresses,
                         net::LookUp(options_.head));
    HVL_ASSIGN_OR_RETURN(net::UniqueFd socket, net::StartConnect(addresses.front()));
    if (!socket.valid()) return Status(StatusCode::kUnavailable, "its queue is full");
    const TimePoint deadline = SteadyClock().Now() + kConnectLimit;
    HVL_RETURN_IF_ERROR(Wait(socket.get(), POLLOUT, deadline));
    HVL_RETURN_IF_ERROR(net::FinishConnect(socket.get()));
    net::Handshake handshake = net::Handshake::Connect(AgentIdentity(), secret_);
    for (;;) {
      HVL_RETURN_IF_ERROR(handshake.Advance(socket.get()));
      if (handshake.done()) break;
      if (SteadyClock().Now() >= deadline) {
        return Status(StatusCode::kUnavailable, "it does not answer");
      }
      HVL_RETURN_IF_ERROR(Wait(socket.get(), POLLIN, deadline));
    }
    return Found{.connection = std::move(socket), .keys = handshake.Keys()};
  }

  /// Until the descriptor is ready or the time has come. Aborted: hvlrun was told to stop.
  Status Wait(int fd, short events, TimePoint until) {
    std::array<pollfd, 2> entries = {pollfd{.fd = front_, .events = POLLIN, .revents = 0},
                                     pollfd{.fd = fd, .events = events, .revents = 0}};
    ::poll(entries.data(), entries.size(), net::PollMillis(until));
    if (entries[0].revents == 0) return Status::Ok();
    std::array<unsigned char, 64> signals{};
    const ssize_t count = ::read(front_, signals.data(), signals.size());
    const auto end = signals.begin() + std::max<ssize_t>(count, 0);
    if (count != 0 && std::none_of(signals.begin(), end, [](int s) { return AsksToStop(s); })) {
      return Status::Ok();
    }
    return {StatusCode::kAborted, "told to stop"};
  }

  const JoinOptions& options_;
  const net::Secret& secret_;
  const int front_;
};

}  // namespace

int JoinHead(const JoinOptions& options, const net::Secret& secret, EnvBlock own,
             net::UniqueFd front) {
  Result<Seeker::Found> found = Seeker(options, secret, front.get()).Seek();
  if (!found.ok()) {
    return Refuse(Format("--join: no head of a job at {}:{}: {}", options.head.host,
                         options.head.port, found.status().message()));
  }
  net::UniqueFd copy(::fcntl(found->connection.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return Refuse(Format("--join: no descriptor: {}", ErrnoText(errno)));
  return RunAgent({.from_head = std::move(found->connection),
                   .to_head = std::move(copy),
                   .front = std::move(front),
                   .own = std::move(own),
                   .shared_secret = secret,
                   .keys = found->keys});
}

}  // namespace hvl::launcher
