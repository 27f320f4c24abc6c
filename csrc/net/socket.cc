#include "csrc/net/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>

#include "csrc/base/check.h"
#include "csrc/base/errno_text.h"
#include "csrc/base/str.h"
#include "csrc/net/secret.h"

namespace hvl::net {
namespace {

// A dead host answers nothing. Idle links probe it after 5 s and give up after 5 more; unanswered
// data and a peer that takes no more bytes are given up after 60 s, long enough for a process that
// is stopped for a while, and far below the system's default of a quarter of an hour.
constexpr int kKeepIdleSeconds = 5;
constexpr int kKeepIntervalSeconds = 1;
constexpr int kKeepProbes = 5;
constexpr unsigned kUserTimeoutMs = 60'000;

Status SetOption(int socket, int level, int name, const void* value, socklen_t bytes) {
  if (::setsockopt(socket, level, name, value, bytes) == 0) return Status::Ok();
  return ErrnoStatus("cannot set a TCP option");
}

Status TuneTcp(int socket) {
  const int on = 1;
  HVL_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  HVL_RETURN_IF_ERROR(SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
  HVL_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepIdleSeconds, sizeof on));
  HVL_RETURN_IF_ERROR(
      SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepIntervalSeconds, sizeof on));
  HVL_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, &kKeepProbes, sizeof on));
  return SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs);
}

/// An invalid descriptor: the address is taken.
Result<UniqueFd> BindAndListen(const SocketAddress& address) {
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus("cannot create a listening socket");
  // A server that has just ended leaves connections behind for a minute; they need not matter to
  // the next one. The kernel's own choice of a port comes before that: it should be a fresh one.
  const auto reuse = [&socket] {
    const int on = 1;
    return SetOption(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  };
  const bool is_tcp = address.family() != AF_UNIX;
  if (is_tcp && PortOf(address) != 0) HVL_RETURN_IF_ERROR(reuse());
  if (::bind(socket.get(), address.get(), address.bytes) != 0) {
    if (errno == EADDRINUSE) return UniqueFd();
    return ErrnoStatus("cannot bind a listening socket");
  }
  if (is_tcp) HVL_RETURN_IF_ERROR(reuse());
  if (::listen(socket.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE) return UniqueFd();
    return ErrnoStatus("cannot listen");
  }
  return socket;
}

/// A host that is down or starting is no refusal: it may be there a little later.
Status ConnectError(std::string_view what, int error) {
  errno = error;
  const Status status = ErrnoStatus(what);
  const bool refused = error == ECONNREFUSED || status.code() != StatusCode::kUnavailable;
  return refused ? status : Status(StatusCode::kTimeout, status.message());
}

}  // namespace

Result<Listener> ListenAt(std::string_view name) {
  Listener listener{.socket = {}, .address = Format("unix:@{}", name)};
  HVL_ASSIGN_OR_RETURN(const SocketAddress address, NumericAddress(listener.address));
  HVL_ASSIGN_OR_RETURN(listener.socket, BindAndListen(address));
  return listener;
}

Result<Listener> ListenAt(const SocketAddress& address) {
  Listener listener;
  HVL_ASSIGN_OR_RETURN(listener.socket, BindAndListen(address));
  if (!listener.socket.valid()) return listener;
  SocketAddress bound;
  bound.bytes = sizeof bound.storage;
  if (::getsockname(listener.socket.get(), bound.get(), &bound.bytes) != 0)
    return ErrnoStatus("cannot read the port of a listening socket");
  listener.address = NumericText(bound);
  return listener;
}

Result<Listener> ListenOn(const std::string& host) {
  HVL_ASSIGN_OR_RETURN(const SocketAddress address,
                       NumericAddress(TcpText({.host = host, .port = 1})));
  HVL_ASSIGN_OR_RETURN(Listener listener, ListenAt(WithPort(address, 0)));
  if (listener.socket.valid()) return listener;
  return Status(StatusCode::kUnavailable, Format("no port of {} is free", host));
}

Result<Listener> Listen(Transport transport) {
  if (transport == Transport::kTcp) return ListenOn("127.0.0.1");
  HVL_ASSIGN_OR_RETURN(Listener listener, ListenAt(Format("hvl-{}", RandomName())));
  HVL_CHECK(listener.socket.valid(), "a name of 128 random bits is taken");
  return listener;
}

Result<UniqueFd> Accept(int listener, Transport transport) {
  for (;;) {
    UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EAGAIN) return socket;
      // These concern the connection that went away, not the listener.
      if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
      return ErrnoStatus("cannot accept a connection");
    }
    const bool welcome = transport == Transport::kTcp ? TuneTcp(socket.get()).ok()
                                                      : CheckPeerUser(socket.get()).ok();
    if (welcome) return socket;
  }
}

Result<UniqueFd> StartConnect(std::string_view numeric_address) {
  HVL_ASSIGN_OR_RETURN(const SocketAddress address, NumericAddress(numeric_address));
  return StartConnect(address);
}

Result<UniqueFd> StartConnect(const SocketAddress& target) {
  UniqueFd socket(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus("cannot create a socket");
  if (target.family() != AF_UNIX) HVL_RETURN_IF_ERROR(TuneTcp(socket.get()));
  if (::connect(socket.get(), target.get(), target.bytes) == 0 || errno == EINPROGRESS)
    return socket;
  if (errno == EAGAIN || errno == EINTR) return UniqueFd();
  return ConnectError("cannot connect", errno);
}

Status FinishConnect(int socket) {
  const int error = TakeError(socket);
  return error == 0 ? Status::Ok() : ConnectError("cannot connect", error);
}

int TakeError(int socket) {
  int error = 0;
  socklen_t bytes = sizeof error;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

bool IsSilence(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == EHOSTDOWN || error == ENETDOWN;
}

bool IsConnected(int socket) {
  SocketAddress peer;
  peer.bytes = sizeof peer.storage;
  return ::getpeername(socket, peer.get(), &peer.bytes) == 0;
}

Status LimitSilence(int socket, Duration limit) {
  const auto millis =
      static_cast<unsigned>(std::chrono::ceil<std::chrono::milliseconds>(limit).count());
  const int probes = static_cast<int>(std::max(1U, millis / 1000));
  const int second = 1;
  HVL_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof second));
  HVL_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes));
  return SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &millis, sizeof millis);
}

pid_t PeerPid(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 ? peer.pid : 0;
}

Status CheckPeerUser(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    return ErrnoStatus("cannot read the credentials of a peer");
  if (peer.uid == ::geteuid()) return Status::Ok();
  return {
      StatusCode::kMismatch,
      Format("the process at the other end belongs to user {}, not to {}", peer.uid, ::geteuid())};
}

Status ErrnoStatus(std::string_view what) {
  const int error = errno;
  const std::string text = ErrnoText(error);
  if (error == EMFILE || error == ENFILE)
    return {StatusCode::kResourceExhausted,
            Format("{}: {}: raise the limit on open files (ulimit -n)", what, text)};
  const bool exhausted = error == ENOMEM || error == ENOBUFS;
  return {exhausted ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
          Format("{}: {}", what, text)};
}

int PollMillis(TimePoint deadline) {
  constexpr auto kLongest = std::chrono::minutes(10);
  const TimePoint now = SteadyClock().Now();
  if (deadline <= now) return 0;
  if (deadline - now > kLongest)
    return static_cast<int>(std::chrono::milliseconds(kLongest).count());
  // Rounded up, so that a wait never ends just before its deadline and spins.
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count());
}

}  // namespace hvl::net
