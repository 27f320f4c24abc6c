#include "csrc/net/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "csrc/base/str.h"
#include "csrc/net/process.h"
#include "csrc/net/socket.h"

namespace hvl::net {
namespace {

struct Interface {
  std::string name;
  SocketAddress address;
  bool is_loopback = false;
};

/// The bytes of an IP address in network order: 4 or 16.
std::span<const std::byte> AddressBytes(const SocketAddress& address) {
  if (address.family() == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    return std::as_bytes(std::span(in6.sin6_addr.s6_addr));
  }
  const auto& in = reinterpret_cast<const sockaddr_in&>(address.storage);
  return std::as_bytes(std::span(&in.sin_addr, 1));
}

bool IsLinkLocal(const SocketAddress& address) {
  const std::span<const std::byte> bytes = AddressBytes(address);
  if (bytes.size() == 4) return bytes[0] == std::byte{169} && bytes[1] == std::byte{254};
  return bytes[0] == std::byte{0xFE} && (bytes[1] & std::byte{0xC0}) == std::byte{0x80};
}

Result<std::vector<Interface>> Interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return ErrnoStatus("cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, &::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface& found = interfaces.emplace_back();
    found.name = entry->ifa_name;
    found.address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&found.address.storage, entry->ifa_addr, found.address.bytes);
    found.is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
  }
  return interfaces;
}

/// "10.0.0.0/8", or an address alone, which is a network of one.
struct Network {
  std::array<std::byte, sizeof(in6_addr)> bytes{};
  std::size_t byte_count = 0;
  unsigned prefix_bits = 0;

  bool Contains(const SocketAddress& address) const {
    const std::span<const std::byte> other = AddressBytes(address);
    if (other.size() != byte_count) return false;
    const std::size_t whole = prefix_bits / 8;
    if (!std::equal(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(whole),
                    bytes.begin())) {
      return false;
    }
    if (prefix_bits % 8 == 0) return true;
    const auto mask = static_cast<std::byte>(0xFF00U >> (prefix_bits % 8));
    return (other[whole] & mask) == (bytes[whole] & mask);
  }
};

std::optional<Network> ParseNetwork(std::string_view text) {
  const std::size_t slash = text.find('/');
  const std::string host(text.substr(0, slash));
  Network network;
  if (::inet_pton(AF_INET, host.c_str(), network.bytes.data()) == 1) {
    network.byte_count = sizeof(in_addr);
  } else if (::inet_pton(AF_INET6, host.c_str(), network.bytes.data()) == 1) {
    network.byte_count = sizeof(in6_addr);
  } else {
    return std::nullopt;
  }
  const auto most = static_cast<unsigned>(8 * network.byte_count);
  network.prefix_bits = most;
  if (slash == std::string_view::npos) return network;
  const std::string_view digits = text.substr(slash + 1);
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, network.prefix_bits);
  const bool valid = error == std::errc() && stop == end && network.prefix_bits <= most;
  return valid ? std::optional(network) : std::nullopt;
}

void AppendNew(std::vector<std::string>& addresses, const SocketAddress& address) {
  std::string text = NumericHost(address);
  if (std::ranges::find(addresses, text) == addresses.end()) addresses.push_back(std::move(text));
}

std::vector<std::string> DefaultAddresses(const std::vector<Interface>& interfaces) {
  std::vector<std::string> addresses;
  for (const bool local_too : {false, true}) {
    for (const int family : {AF_INET, AF_INET6}) {
      for (const Interface& interface : interfaces) {
        const bool is_local = interface.is_loopback || IsLinkLocal(interface.address);
        if (interface.address.family() == family && is_local == local_too)
          AppendNew(addresses, interface.address);
      }
    }
    if (!addresses.empty()) break;
  }
  return addresses;
}

Status BadEntry(std::string_view entry) {
  return {StatusCode::kInvalidArgument,
          Format("HVL_NETWORK: '{}' is not valid; expected a comma list of interfaces (eth0), "
                 "addresses (192.168.7.1) and networks (10.0.0.0/8)",
                 entry.substr(0, 64))};
}

Status AppendMatches(std::string_view entry, const std::vector<Interface>& interfaces,
                     std::vector<std::string>& addresses) {
  const std::optional<Network> network = ParseNetwork(entry);
  const bool may_be_name = entry.find_first_of("/: ") == std::string_view::npos;
  if (entry.empty() || (!network && !may_be_name)) return BadEntry(entry);
  for (const Interface& interface : interfaces) {
    const bool matches = network ? network->Contains(interface.address) : interface.name == entry;
    if (matches) AppendNew(addresses, interface.address);
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<std::string>> ChooseAddresses(std::string_view networks) {
  HVL_ASSIGN_OR_RETURN(const std::vector<Interface> interfaces, Interfaces());
  if (networks.empty()) return DefaultAddresses(interfaces);
  std::vector<std::string> addresses;
  for (std::string_view rest = networks;;) {
    const std::size_t comma = rest.find(',');
    HVL_RETURN_IF_ERROR(AppendMatches(rest.substr(0, comma), interfaces, addresses));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (!addresses.empty()) return addresses;
  return Status(StatusCode::kUnavailable,
                Format("HVL_NETWORK='{}' names no address of this host ({}) that is up", networks,
                       HostName()));
}

bool IsOwnAddress(const SocketAddress& address) {
  const std::span<const std::byte> wanted = AddressBytes(address);
  // All of 127.0.0.0/8 is this host, though interfaces name one address of it.
  if (wanted.size() == 4 && wanted[0] == std::byte{127}) return true;
  const auto interfaces = Interfaces();
  return interfaces.ok() && std::ranges::any_of(*interfaces, [wanted](const Interface& own) {
           return std::ranges::equal(AddressBytes(own.address), wanted);
         });
}

}  // namespace hvl::net
