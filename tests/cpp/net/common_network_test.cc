// Which of its addresses each host is reached at, where nothing can be tried out.
#include "csrc/net/common_network.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "csrc/net/address.h"
#include "csrc/net/interfaces.h"

namespace hvl::net {
namespace {

using Host = std::vector<InterfaceAddress>;
using Addresses = std::vector<std::string>;

TEST_CASE("hosts are reached in the network that they share") {
  const std::vector<Host> hosts = {
      {{"192.168.1.5", 24}, {"10.0.0.1", 8}},
      {{"172.16.3.2", 16}, {"10.9.0.2", 8}},
      {{"10.200.0.3", 8}},
  };
  CHECK(AddressesInCommon(hosts) == Addresses{"10.0.0.1", "10.9.0.2", "10.200.0.3"});
}

TEST_CASE("the first of several shared networks counts") {
  const std::vector<Host> hosts = {{{"10.1.0.1", 16}, {"10.2.0.1", 16}},
                                   {{"10.2.0.2", 16}, {"10.1.0.2", 16}}};
  CHECK(AddressesInCommon(hosts) == Addresses{"10.1.0.1", "10.1.0.2"});
}

TEST_CASE("an address that several hosts have leads nowhere") {
  const std::vector<Host> hosts = {{{"172.17.0.1", 16}, {"10.0.0.1", 24}},
                                   {{"172.17.0.1", 16}, {"10.0.0.2", 24}}};
  CHECK(AddressesInCommon(hosts) == Addresses{"10.0.0.1", "10.0.0.2"});
  // Twice on one host is once.
  CHECK(AddressesInCommon(std::vector<Host>{{{"10.0.0.1", 24}, {"10.0.0.1", 32}}}) ==
        Addresses{"10.0.0.1"});
}

TEST_CASE("the network that most hosts are in wins, and the others are routed to") {
  const std::vector<Host> hosts = {{{"192.168.0.1", 24}, {"10.0.0.1", 24}},
                                   {{"10.0.0.2", 24}},
                                   {{"10.0.0.3", 24}, {"192.168.0.3", 24}},
                                   {{"10.5.0.4", 24}}};
  CHECK(AddressesInCommon(hosts) == Addresses{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.5.0.4"});
}

TEST_CASE("networks of IPv6 and odd prefixes are compared bit by bit") {
  const std::vector<Host> hosts = {{{"fd00:0:0:4::1", 62}},
                                   {{"fd00:0:0:8::2", 62}, {"fd00:0:0:7::2", 62}}};
  CHECK(AddressesInCommon(hosts) == Addresses{"fd00:0:0:4::1", "fd00:0:0:7::2"});
  const std::vector<Host> mixed = {{{"10.0.0.1", 0}}, {{"fd00::1", 64}, {"1.2.3.4", 32}}};
  CHECK(AddressesInCommon(mixed) == Addresses{"10.0.0.1", "1.2.3.4"});
}

TEST_CASE("a host without an address has none") {
  CHECK(AddressesInCommon(std::vector<Host>{{}, {{"10.0.0.2", 24}}}) == Addresses{"", "10.0.0.2"});
  CHECK(AddressesInCommon(std::vector<Host>{{{"10.0.0.1", 24}}, {}}) == Addresses{"10.0.0.1", ""});
}

TEST_CASE("this host's addresses are its own and no loopback") {
  for (const InterfaceAddress& own : OwnInterfaceAddresses()) {
    INFO(own.address << "/" << own.prefix_bits);
    const auto address = NumericAddress(TcpText({.host = own.address, .port = 1}));
    REQUIRE(address.ok());
    CHECK(IsOwnAddress(*address));
    CHECK_FALSE(own.address.starts_with("127."));
    CHECK(own.prefix_bits > 0);
  }
}

}  // namespace
}  // namespace hvl::net
