#include "csrc/net/address.h"

#include <catch2/catch.hpp>
#include <string>

#include "csrc/net/interfaces.h"
#include "csrc/net/socket.h"

namespace hvl::net {

TEST_CASE("addresses on TCP are a host and a port, IPv6 in brackets", "[address]") {
  const std::pair<const char*, HostPort> good[] = {
      {"tcp:127.0.0.1:80", {"127.0.0.1", 80}},
      {"tcp:node-17.cluster:65535", {"node-17.cluster", 65535}},
      {"tcp:[::1]:1", {"::1", 1}},
      {"tcp:[fe80::1%eth0]:4711", {"fe80::1%eth0", 4711}},
  };
  for (const auto& [text, place] : good) {
    INFO(text);
    REQUIRE(ParseTcp(text).ok());
    CHECK(*ParseTcp(text) == place);
    CHECK(TcpText(place) == text);
    CHECK(*TransportOf(text) == Transport::kTcp);
  }
  for (const std::string& text :
       {std::string("tcp:"), std::string("tcp:host"), std::string("tcp:host:"),
        std::string("tcp::80"), std::string("tcp:host:0"), std::string("tcp:host:65536"),
        std::string("tcp:host:+1"), std::string("tcp:host:1 "), std::string("tcp:::1:80"),
        std::string("tcp:[host]x:80"), std::string("tcp:[]:80"), std::string("tcp:ho st:80"),
        std::string("udp:host:80"), "tcp:" + std::string(256, 'h') + ":80"}) {
    INFO(text);
    CHECK(ParseTcp(text).status().code() == StatusCode::kInvalidArgument);
    CHECK(TransportOf(text).status().code() == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("only numeric addresses are taken without asking for names", "[address]") {
  CHECK(NumericText(NumericAddress("tcp:10.1.2.3:4").value()) == "tcp:10.1.2.3:4");
  CHECK(NumericText(NumericAddress("tcp:[2001:db8:0::7]:4").value()) == "tcp:[2001:db8::7]:4");
  CHECK(NumericAddress("tcp:localhost:4").status().code() == StatusCode::kInvalidArgument);
  CHECK(LookUp({"localhost", 4}).ok());
  CHECK(LookUp({"no-such-host.invalid", 4}).status().code() == StatusCode::kUnavailable);
}

TEST_CASE("a listener is where it was told to be", "[address]") {
  const Listener listener = ListenOn("127.0.0.3").value();
  CHECK_THAT(listener.address, Catch::StartsWith("tcp:127.0.0.3:"));
  const UniqueFd socket = StartConnect(listener.address).value();
  CHECK(socket.valid());
  CHECK_FALSE(ListenAt(NumericAddress(listener.address).value())->socket.valid());
  CHECK(ListenOn("198.51.100.1").status().code() == StatusCode::kUnavailable);
  CHECK(LocalHostTowards(NumericAddress(listener.address).value()).value() == "127.0.0.1");
}

TEST_CASE("a network is chosen by interface, address or prefix", "[address]") {
  using Addresses = std::vector<std::string>;
  CHECK(ChooseAddresses("lo")->front() == "127.0.0.1");
  CHECK(*ChooseAddresses("127.0.0.1") == Addresses{"127.0.0.1"});
  CHECK(*ChooseAddresses("no-such-interface,127.0.0.0/8") == Addresses{"127.0.0.1"});
  CHECK(*ChooseAddresses("127.255.255.255/7,lo,127.0.0.1")->begin() == "127.0.0.1");
  CHECK_FALSE(ChooseAddresses("")->empty());
  for (const char* bad :
       {",", "lo,", "10.0.0.0/33", "fd00::/129", "10.0.0.0/", "10.0.0/8", "a b", "10.0.0.0/-1"}) {
    INFO(bad);
    CHECK(ChooseAddresses(bad).status().code() == StatusCode::kInvalidArgument);
  }
  const Status absent = ChooseAddresses("198.51.100.0/24,nope0").status();
  CHECK(absent.code() == StatusCode::kUnavailable);
  CHECK_THAT(absent.message(), Catch::Contains("198.51.100.0/24,nope0"));
  CHECK(IsOwnAddress(NumericAddress("tcp:127.9.9.9:1").value()));
  CHECK_FALSE(IsOwnAddress(NumericAddress("tcp:198.51.100.1:1").value()));
}

}  // namespace hvl::net
