#include "csrc/net/common_network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>

namespace hvl::net {
namespace {

using AddressBits = std::vector<std::byte>;

AddressBits Bits(const std::string& address) {
  AddressBits bits(sizeof(in6_addr));
  if (::inet_pton(AF_INET6, address.c_str(), bits.data()) == 1) return bits;
  bits.resize(sizeof(in_addr));
  if (::inet_pton(AF_INET, address.c_str(), bits.data()) == 1) return bits;
  return {};
}

bool InNetworkOf(const InterfaceAddress& network, const std::string& address) {
  const AddressBits a = Bits(network.address);
  const AddressBits b = Bits(address);
  if (a.empty() || a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const int bits = std::clamp(network.prefix_bits - static_cast<int>(8 * i), 0, 8);
    const auto mask = static_cast<std::byte>(0xFF00U >> bits);
    if ((a[i] & mask) != (b[i] & mask)) return false;
  }
  return true;
}

const InterfaceAddress* FindIn(const InterfaceAddress& network,
                               const std::vector<InterfaceAddress>& addresses) {
  const auto found = std::ranges::find_if(addresses, [&network](const InterfaceAddress& own) {
    return InNetworkOf(network, own.address);
  });
  return found == addresses.end() ? nullptr : &*found;
}

std::span<const std::byte> BytesOf(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    const auto* const in6 = reinterpret_cast<const sockaddr_in6*>(address);
    return std::as_bytes(std::span(in6->sin6_addr.s6_addr));
  }
  const auto* const in = reinterpret_cast<const sockaddr_in*>(address);
  return std::as_bytes(std::span(&in->sin_addr, 1));
}

bool IsLinkLocalBytes(std::span<const std::byte> bytes) {
  if (bytes.size() == sizeof(in_addr)) {
    return bytes[0] == std::byte{169} && bytes[1] == std::byte{254};
  }
  return bytes[0] == std::byte{0xFE} && (bytes[1] & std::byte{0xC0}) == std::byte{0x80};
}

std::optional<InterfaceAddress> Describe(const ifaddrs& entry) {
  constexpr unsigned kUsable = IFF_UP;
  if (entry.ifa_addr == nullptr || entry.ifa_netmask == nullptr) return std::nullopt;
  if ((entry.ifa_flags & (kUsable | IFF_LOOPBACK)) != kUsable) return std::nullopt;
  const int family = entry.ifa_addr->sa_family;
  if (family != AF_INET && family != AF_INET6) return std::nullopt;
  const std::span<const std::byte> bytes = BytesOf(entry.ifa_addr);
  if (IsLinkLocalBytes(bytes)) return std::nullopt;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (::inet_ntop(family, bytes.data(), text.data(), text.size()) == nullptr) return std::nullopt;
  InterfaceAddress found{.address = text.data()};
  for (const std::byte part : BytesOf(entry.ifa_netmask)) {
    found.prefix_bits += std::popcount(std::to_integer<unsigned>(part));
  }
  return found;
}

}  // namespace

std::vector<InterfaceAddress> OwnInterfaceAddresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, &::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const bool is_v6 : {false, true}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      const std::optional<InterfaceAddress> own = Describe(*entry);
      if (own && (own->address.find(':') != std::string::npos) == is_v6) found.push_back(*own);
    }
  }
  return found;
}

std::vector<std::string> AddressesInCommon(std::span<const std::vector<InterfaceAddress>> hosts) {
  std::map<std::string, std::set<std::size_t>> owners;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (const InterfaceAddress& own : hosts[host]) owners[own.address].insert(host);
  }
  std::vector<std::vector<InterfaceAddress>> unique(hosts.begin(), hosts.end());
  for (auto& addresses : unique) {
    std::erase_if(addresses, [&owners](const InterfaceAddress& own) {
      return owners[own.address].size() > 1;
    });
  }
  const InterfaceAddress* best = nullptr;
  std::ptrdiff_t most = 0;
  for (const InterfaceAddress& network : unique.front()) {
    const auto reached = std::ranges::count_if(unique, [&network](const auto& addresses) {
      return FindIn(network, addresses) != nullptr;
    });
    if (reached <= most) continue;
    most = reached;
    best = &network;
  }
  std::vector<std::string> chosen;
  for (const auto& addresses : unique) {
    const InterfaceAddress* in = best == nullptr ? nullptr : FindIn(*best, addresses);
    if (in == nullptr && !addresses.empty()) in = &addresses.front();
    chosen.push_back(in == nullptr ? "" : in->address);
  }
  return chosen;
}

}  // namespace hvl::net
