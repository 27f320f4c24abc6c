#include "launcher/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <set>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

constexpr int kUsualPort = 29500;  // torch.distributed's own default

using Interfaces = std::unique_ptr<ifaddrs, void (*)(ifaddrs*)>;

Interfaces ReadInterfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) first = nullptr;
  return {first, &::freeifaddrs};
}

std::string AddressText(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address == nullptr) return "";
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  } else {
    return "";
  }
  if (::inet_ntop(address->sa_family, bytes, text.data(), text.size()) == nullptr) return "";
  return text.data();
}

bool IsLinkLocal(const std::string& address) {
  return address.starts_with("fe80:") || address.starts_with("169.254.");
}

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

AddressList LookUp(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* first = nullptr;
  // Some port, because a socket is to be connected.
  if (::getaddrinfo(host.c_str(), "9", &hints, &first) != 0) first = nullptr;
  return {first, [](addrinfo* list) {
            if (list != nullptr) ::freeaddrinfo(list);
          }};
}

/// A socket bound to `port` of `address`; invalid with errno set when that fails.
net::UniqueFd BindTcp(in_addr_t address, int port, bool reuse) {
  net::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return socket;
  const int on = 1;
  if (reuse) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(address);
  where.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0) {
    return socket;
  }
  const int error = errno;
  socket.Reset();
  errno = error;
  return socket;
}

}  // namespace

std::vector<std::string> OwnNames() {
  std::vector<std::string> names;
  const auto add = [&names](std::string name) {
    const bool known = std::find(names.begin(), names.end(), name) != names.end();
    if (!name.empty() && !known) names.push_back(std::move(name));
  };
  const std::string name = HostName();
  add(name);
  add(name.substr(0, name.find('.')));
  const Interfaces interfaces = ReadInterfaces();
  for (const ifaddrs* at = interfaces.get(); at != nullptr; at = at->ifa_next) {
    add(AddressText(at->ifa_addr));
  }
  return names;
}

std::string HostName() {
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "";
}

std::string AddressOfInterface(const std::string& interface_name) {
  const Interfaces interfaces = ReadInterfaces();
  for (const ifaddrs* at = interfaces.get(); at != nullptr; at = at->ifa_next) {
    if (interface_name != at->ifa_name) continue;
    std::string text = AddressText(at->ifa_addr);
    if (!text.empty() && !IsLinkLocal(text)) return text;
  }
  return "";
}

std::string AddressOf(const std::string& host) {
  const AddressList list = LookUp(host);
  return list == nullptr ? "" : AddressText(list->ai_addr);
}

std::string AddressTowards(const std::string& host) {
  const AddressList list = LookUp(host);
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    // Connecting a datagram socket sends nothing; it only chooses the way.
    const net::UniqueFd socket(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (!socket.valid() || ::connect(socket.get(), at->ai_addr, at->ai_addrlen) != 0 ||
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
      continue;
    }
    return AddressText(reinterpret_cast<const sockaddr*>(&own));
  }
  return "";
}

std::vector<std::string> OutsideAddresses() {
  std::vector<std::string> addresses;
  const Interfaces interfaces = ReadInterfaces();
  for (const ifaddrs* at = interfaces.get(); at != nullptr; at = at->ifa_next) {
    if ((at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::string text = AddressText(at->ifa_addr);
    if (text.empty() || IsLinkLocal(text)) continue;
    addresses.push_back(std::move(text));
  }
  return addresses;
}

Status RequireInterfaces(const std::vector<std::string>& interfaces) {
  if (interfaces.empty()) return Status::Ok();
  std::set<std::string> known;
  const Interfaces list = ReadInterfaces();
  for (const ifaddrs* at = list.get(); at != nullptr; at = at->ifa_next) known.insert(at->ifa_name);
  for (const std::string& name : interfaces) {
    if (known.contains(name)) continue;
    std::string all;
    for (const std::string& other : known) all += (all.empty() ? "" : ", ") + other;
    return {StatusCode::kInvalidArgument,
            Format("--network-interfaces: this machine has no interface '{}'; it has: {}", name,
                   all.empty() ? "none" : all)};
  }
  return Status::Ok();
}

ReservedPort ReservePort(PortScope scope) {
  // Without SO_REUSEADDR while the kernel chooses, so that it chooses a port nobody has.
  net::UniqueFd socket =
      BindTcp(scope == PortScope::kLoopback ? INADDR_LOOPBACK : INADDR_ANY, 0, false);
  sockaddr_in where{};
  socklen_t length = sizeof where;
  const int on = 1;
  if (!socket.valid() ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&where), &length) != 0 ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
    return {.guard = {}, .port = kUsualPort};
  }
  return {.guard = std::move(socket), .port = ntohs(where.sin_port)};
}

Status RequireFreePort(const std::string& name, const std::string& port) {
  int number = 0;
  const char* end = port.data() + port.size();
  const auto [parsed_until, error] = std::from_chars(port.data(), end, number);
  if (error != std::errc() || parsed_until != end || number < 1 || number > 65535) {
    return {StatusCode::kInvalidArgument,
            Format("{}='{}' is not valid: expected a port from 1 to 65535", name, port)};
  }
  const net::UniqueFd socket = BindTcp(INADDR_ANY, number, true);
  if (socket.valid() || errno != EADDRINUSE) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          Format("{}={}: this port is in use on this machine; choose another, or unset {} and "
                 "hvlrun picks a free one",
                 name, port, name)};
}

}  // namespace hvl::launcher
