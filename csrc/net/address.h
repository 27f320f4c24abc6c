// Where a socket is, as text and as the kernel wants it: "unix:@<name>" (abstract) and
// "tcp:<host>:<port>", an IPv6 address in brackets.
#pragma once

#include <sys/socket.h>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "horovodlite/status.h"

namespace hvl::net {

enum class Transport : std::uint8_t { kUnix, kTcp };

/// InvalidArgument unless `address` has one of the two forms.
Result<Transport> TransportOf(std::string_view address);

struct HostPort {
  std::string host;  ///< a name or a numeric address, without brackets
  std::uint16_t port = 0;

  bool operator==(const HostPort&) const = default;
};

/// InvalidArgument unless `address` is "tcp:<host>:<port>".
Result<HostPort> ParseTcp(std::string_view address);
/// The other way round.
std::string TcpText(const HostPort& place);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

/// 0 for a Unix socket.
std::uint16_t PortOf(const SocketAddress& address);
/// Of a TCP address.
SocketAddress WithPort(SocketAddress address, std::uint16_t port);

/// Asks no name server: InvalidArgument unless `address` is "unix:@<name>", or TCP with a numeric
/// host.
Result<SocketAddress> NumericAddress(std::string_view address);
/// The addresses that a host's name stands for, the system's favourite first; may wait for a name
/// server. Unavailable when there is none (yet).
Result<std::vector<SocketAddress>> LookUp(const HostPort& place);
/// Of a TCP address: without its port, and as "tcp:<numeric host>:<port>".
std::string NumericHost(const SocketAddress& address);
std::string NumericText(const SocketAddress& address);

/// The numeric address of this host from which the system would send to `address` (nothing is
/// sent). Unavailable when there is no way.
Result<std::string> LocalHostTowards(const SocketAddress& address);

}  // namespace hvl::net
