// Which of its addresses each host of a job should be reached at, where nobody says and nothing can
// be tried out: told from the networks that the hosts have in common.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace hvl::net {

/// An address of an interface; its first bits name the network.
struct InterfaceAddress {
  std::string address;
  int prefix_bits = 0;

  bool operator==(const InterfaceAddress&) const = default;
};

/// Of this host's interfaces that are up, without loopback and link-local ones, IPv4 first.
std::vector<InterfaceAddress> OwnInterfaceAddresses();

/// One address for each host: all in the network of host 0 that most hosts are in; of a host that
/// is not in it, its first one; "" of a host that has none. An address that several hosts have (the
/// bridge of a container engine) leads nowhere and does not count. Pure.
std::vector<std::string> AddressesInCommon(std::span<const std::vector<InterfaceAddress>> hosts);

}  // namespace hvl::net
