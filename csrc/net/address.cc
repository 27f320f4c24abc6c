#include "csrc/net/address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/net/fd.h"
#include "csrc/net/socket.h"

namespace hvl::net {
namespace {

constexpr std::string_view kUnixPrefix = "unix:@";
constexpr std::string_view kTcpPrefix = "tcp:";
constexpr std::size_t kMaxHostBytes = 255;  // as in the domain name system

Status NoAddress(std::string_view text) {
  return {StatusCode::kInvalidArgument,
          Format("'{}' is not an address; expected unix:@<name>, tcp:<host>:<port> or "
                 "tcp:[<IPv6 address>]:<port>",
                 text.substr(0, 128))};
}

bool IsUnixName(std::string_view name) {
  return !name.empty() && name.size() < sizeof(sockaddr_un::sun_path);
}

SocketAddress UnixAddress(std::string_view name) {
  SocketAddress address;
  auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
  un.sun_family = AF_UNIX;
  // The leading zero byte makes the name abstract: no file, gone with its last descriptor.
  std::ranges::copy(name, un.sun_path + 1);
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<std::vector<SocketAddress>> AddressesOf(const HostPort& place, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(place.host.c_str(), Format("{}", place.port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(StatusCode::kUnavailable,
                  Format("the name '{}' has no address: {}", place.host, ::gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.bytes = entry->ai_addrlen;
  }
  ::freeaddrinfo(found);
  return addresses;
}

}  // namespace

Result<Transport> TransportOf(std::string_view address) {
  if (address.starts_with(kUnixPrefix) && IsUnixName(address.substr(kUnixPrefix.size())))
    return Transport::kUnix;
  HVL_RETURN_IF_ERROR(ParseTcp(address).status());
  return Transport::kTcp;
}

Result<HostPort> ParseTcp(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  if (!address.starts_with(kTcpPrefix) || colon < kTcpPrefix.size()) return NoAddress(address);
  std::string_view host = address.substr(kTcpPrefix.size(), colon - kTcpPrefix.size());
  const bool bracketed = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  if (bracketed) host = host.substr(1, host.size() - 2);
  // Only brackets tell the colons of IPv6 from the one before the port.
  const bool has_colon = host.find(':') != std::string_view::npos;
  const auto is_odd = [](char c) { return c <= ' ' || c > '~' || c == '[' || c == ']'; };
  if (host.empty() || host.size() > kMaxHostBytes || has_colon != bracketed ||
      std::ranges::any_of(host, is_odd)) {
    return NoAddress(address);
  }
  const std::string_view digits = address.substr(colon + 1);
  HostPort place{.host = std::string(host)};
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, place.port);
  if (error != std::errc() || stop != end || place.port == 0) return NoAddress(address);
  return place;
}

std::string TcpText(const HostPort& place) {
  const bool needs_brackets = place.host.find(':') != std::string::npos;
  return needs_brackets ? Format("{}[{}]:{}", kTcpPrefix, place.host, place.port)
                        : Format("{}{}:{}", kTcpPrefix, place.host, place.port);
}

std::uint16_t PortOf(const SocketAddress& address) {
  if (address.family() == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
  if (address.family() != AF_INET) return 0;
  return ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
}

SocketAddress WithPort(SocketAddress address, std::uint16_t port) {
  if (address.family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address.storage).sin_port = htons(port);
  }
  return address;
}

Result<SocketAddress> NumericAddress(std::string_view address) {
  HVL_ASSIGN_OR_RETURN(const Transport transport, TransportOf(address));
  if (transport == Transport::kUnix) return UnixAddress(address.substr(kUnixPrefix.size()));
  HVL_ASSIGN_OR_RETURN(const HostPort place, ParseTcp(address));
  const auto found = AddressesOf(place, AI_NUMERICHOST);
  if (!found.ok()) {
    return Status(StatusCode::kInvalidArgument,
                  Format("'{}' is not a numeric address", address.substr(0, 128)));
  }
  return found->front();
}

Result<std::vector<SocketAddress>> LookUp(const HostPort& place) { return AddressesOf(place, 0); }

std::string NumericHost(const SocketAddress& address) {
  std::array<char, NI_MAXHOST> host{};
  const int error = ::getnameinfo(address.get(), address.bytes, host.data(), host.size(), nullptr,
                                  0, NI_NUMERICHOST);
  HVL_CHECK(error == 0, "an address of the system has no numeric form");
  return host.data();
}

std::string NumericText(const SocketAddress& address) {
  return TcpText({.host = NumericHost(address), .port = PortOf(address)});
}

// Connecting a datagram socket chooses a route and sends nothing.
Result<std::string> LocalHostTowards(const SocketAddress& address) {
  const UniqueFd socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus("cannot create a socket");
  SocketAddress local;
  local.bytes = sizeof local.storage;
  if (::connect(socket.get(), address.get(), address.bytes) != 0 ||
      ::getsockname(socket.get(), local.get(), &local.bytes) != 0) {
    return ErrnoStatus(Format("there is no way to {}", NumericText(address)));
  }
  return NumericHost(local);
}

}  // namespace hvl::net
