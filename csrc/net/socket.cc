#include "csrc/net/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>

#include "csrc/base/check.h"
#include "csrc/base/errno_text.h"
#include "csrc/base/str.h"
#include "csrc/net/secret.h"

namespace hvl::net {
namespace {

constexpr std::string_view kUnixPrefix = "unix:@";
constexpr std::string_view kTcpPrefix = "tcp:127.0.0.1:";

// A dead host answers nothing. Idle links probe it after 5 s and give up after 5 more; unanswered
// data and a peer that takes no more bytes are given up after 60 s, long enough for a process that
// is stopped for a while, and far below the system's default of a quarter of an hour.
constexpr int kKeepIdleSeconds = 5;
constexpr int kKeepIntervalSeconds = 1;
constexpr int kKeepProbes = 5;
constexpr unsigned kUserTimeoutMs = 60'000;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress UnixAddress(std::string_view name) {
  SocketAddress address;
  auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
  un.sun_family = AF_UNIX;
  // The leading zero byte makes the name abstract: no file, gone with its last descriptor.
  std::ranges::copy(name, un.sun_path + 1);
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

SocketAddress LoopbackAddress(std::uint16_t port) {
  SocketAddress address;
  auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  in.sin_port = htons(port);
  address.bytes = sizeof(sockaddr_in);
  return address;
}

Result<SocketAddress> Resolve(const std::string& address) {
  const std::string_view text = address;
  if (text.starts_with(kUnixPrefix)) {
    const std::string_view name = text.substr(kUnixPrefix.size());
    if (!name.empty() && name.size() < sizeof(sockaddr_un::sun_path)) return UnixAddress(name);
  }
  if (text.starts_with(kTcpPrefix)) {
    const std::string_view port_text = text.substr(kTcpPrefix.size());
    std::uint16_t port = 0;
    const char* const end = port_text.data() + port_text.size();
    const auto [stop, error] = std::from_chars(port_text.data(), end, port);
    if (error == std::errc() && stop == end && port != 0) return LoopbackAddress(port);
  }
  return Status(StatusCode::kInvalidArgument,
                Format("'{}' is not an address; expected unix:@<name> or tcp:127.0.0.1:<port>",
                       address.substr(0, 128)));
}

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
  UniqueFd socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus("cannot create a listening socket");
  if (::bind(socket.get(), address.get(), address.bytes) != 0) {
    if (errno == EADDRINUSE) return UniqueFd();
    return ErrnoStatus("cannot bind a listening socket");
  }
  if (::listen(socket.get(), SOMAXCONN) != 0) return ErrnoStatus("cannot listen");
  return socket;
}

}  // namespace

Result<Listener> ListenAt(std::string_view name) {
  Listener listener{.socket = {}, .address = Format("{}{}", kUnixPrefix, name)};
  HVL_ASSIGN_OR_RETURN(const SocketAddress address, Resolve(listener.address));
  HVL_ASSIGN_OR_RETURN(listener.socket, BindAndListen(address));
  return listener;
}

Result<Listener> Listen(Transport transport) {
  if (transport == Transport::kUnix) {
    HVL_ASSIGN_OR_RETURN(Listener listener, ListenAt(Format("hvl-{}", RandomName())));
    HVL_CHECK(listener.socket.valid(), "a name of 128 random bits is taken");
    return listener;
  }
  Listener listener;
  HVL_ASSIGN_OR_RETURN(listener.socket, BindAndListen(LoopbackAddress(0)));
  if (!listener.socket.valid()) {
    return Status(StatusCode::kUnavailable, "no port of the loopback address is free");
  }
  sockaddr_in bound{};
  socklen_t bytes = sizeof bound;
  if (::getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0)
    return ErrnoStatus("cannot read the port of a listening socket");
  listener.address = Format("{}{}", kTcpPrefix, ntohs(bound.sin_port));
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

Result<UniqueFd> StartConnect(const std::string& address) {
  HVL_ASSIGN_OR_RETURN(const SocketAddress target, Resolve(address));
  const int family = target.storage.ss_family;
  UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus("cannot create a socket");
  if (family == AF_INET) HVL_RETURN_IF_ERROR(TuneTcp(socket.get()));
  if (::connect(socket.get(), target.get(), target.bytes) == 0 || errno == EINPROGRESS)
    return socket;
  if (errno == EAGAIN || errno == EINTR) return UniqueFd();
  return ErrnoStatus(Format("cannot connect to {}", address));
}

Result<Transport> TransportOf(const std::string& address) {
  HVL_ASSIGN_OR_RETURN(const SocketAddress target, Resolve(address));
  return target.storage.ss_family == AF_UNIX ? Transport::kUnix : Transport::kTcp;
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
