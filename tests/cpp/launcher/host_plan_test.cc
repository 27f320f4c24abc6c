// Host lists, host files, and the numbers that each rank gets.
#include "launcher/host_plan.h"

#include <catch2/catch.hpp>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

std::vector<HostSlots> HostsOk(std::string_view text) {
  Result<std::vector<HostSlots>> hosts = ParseHosts(text);
  INFO(hosts.status().ToString());
  REQUIRE(hosts.ok());
  return *hosts;
}

std::string HostsError(std::string_view text) {
  const Result<std::vector<HostSlots>> hosts = ParseHosts(text);
  REQUIRE_FALSE(hosts.ok());
  return hosts.status().message();
}

std::string FileError(std::string_view text) {
  const Result<std::vector<HostSlots>> hosts = ParseHostfile(text, "hosts");
  REQUIRE_FALSE(hosts.ok());
  return hosts.status().message();
}

std::vector<RankPlace> PlacesOk(std::string_view hosts, int num_proc) {
  Result<std::vector<RankPlace>> places = PlaceRanks(HostsOk(hosts), num_proc);
  INFO(places.status().ToString());
  REQUIRE(places.ok());
  return *places;
}

TEST_CASE("a host list gives names and slots in order") {
  CHECK(HostsOk("localhost:2,127.0.0.1:3") ==
        std::vector<HostSlots>{{"localhost", 2}, {"127.0.0.1", 3}});
  CHECK(HostsOk("a-b_c.d:1") == std::vector<HostSlots>{{"a-b_c.d", 1}});
  CHECK(HostsOk("solo") == std::vector<HostSlots>{{"solo", std::nullopt}});
  CHECK(HostsOk(" a:1 , b:2 ") == std::vector<HostSlots>{{"a", 1}, {"b", 2}});
}

TEST_CASE("an IPv6 address is written in brackets") {
  CHECK(HostsOk("[::1]:4") == std::vector<HostSlots>{{"::1", 4}});
  CHECK(HostsOk("[2001:db8::7]") == std::vector<HostSlots>{{"2001:db8::7", std::nullopt}});
  CHECK_THAT(HostsError("::1"), Catch::Contains("[::1]:slots"));
  CHECK_THAT(HostsError("fd00::1:2"), Catch::Contains("[fd00::1:2]:slots"));
  CHECK(HostsOk("[fe80::1%eth0]:4") == std::vector<HostSlots>{{"fe80::1%eth0", 4}});
  CHECK(HostsOk("[fe80::1%br-lan.7]") ==
        std::vector<HostSlots>{{"fe80::1%br-lan.7", std::nullopt}});
  CHECK_THAT(HostsError("fe80::1%eth0:2"), Catch::Contains("as [fe80::1%eth0]:slots"));
  CHECK_THAT(HostsError("fe80::1%eth0"), Catch::Contains("as [fe80::1%eth0]:slots"));
  CHECK_THAT(HostsError("[fe80::1%]:2"), Catch::Contains("not an address"));
  CHECK_THAT(HostsError("[fe80::1%a;b]:2"), Catch::Contains("not an address"));
  CHECK_THAT(HostsError("[::1"), Catch::Contains("not an address"));
  CHECK_THAT(HostsError("[::1]x:2"), Catch::Contains("not an address"));
  CHECK_THAT(HostsError("[]:2"), Catch::Contains("not an address"));
}

TEST_CASE("a range of host names stands for each of them, with the slots behind it") {
  CHECK(HostsOk("node[01-03]:8") ==
        std::vector<HostSlots>{{"node01", 8}, {"node02", 8}, {"node03", 8}});
  CHECK(HostsOk("a:1,g[9-10,200].rack[1,2]:4,b:1") == std::vector<HostSlots>{{"a", 1},
                                                                             {"g9.rack1", 4},
                                                                             {"g9.rack2", 4},
                                                                             {"g10.rack1", 4},
                                                                             {"g10.rack2", 4},
                                                                             {"g200.rack1", 4},
                                                                             {"g200.rack2", 4},
                                                                             {"b", 1}});
  CHECK(HostsOk("127.0.0.[1-2]:1") == std::vector<HostSlots>{{"127.0.0.1", 1}, {"127.0.0.2", 1}});
  CHECK(HostsOk("n[1-2]") == std::vector<HostSlots>{{"n1", std::nullopt}, {"n2", std::nullopt}});
  CHECK(HostsOk("n[000-65535]:1").size() == 65536);
}

TEST_CASE("a malformed range of host names is refused with what is expected") {
  CHECK_THAT(HostsError("n[3-1]:2"), Catch::Contains("'3-1' is no range of numbers"));
  CHECK_THAT(HostsError("n[a-c]:2"), Catch::Contains("'a-c' is no range of numbers"));
  CHECK_THAT(HostsError("n[1,,2]:2"), Catch::Contains("'' is no range of numbers"));
  CHECK_THAT(HostsError("n[]:2"), Catch::Contains("is no range of numbers"));
  CHECK_THAT(HostsError("n[1-]:2"), Catch::Contains("'1-' is no range of numbers"));
  CHECK_THAT(HostsError("n[1-2:2,b:1"), Catch::Contains("without its ']'"));
  CHECK_THAT(HostsError("n]:2"), Catch::Contains("'n]:2' is not a host"));
  CHECK_THAT(HostsError("n[0-65536]:1"), Catch::Contains("more than 65536 hosts"));
  CHECK_THAT(HostsError("n[0-999][0-999]:1"), Catch::Contains("more than 65536 hosts"));
  CHECK_THAT(HostsError("n[1-9999999999]:1"), Catch::Contains("is no range of numbers"));
}

TEST_CASE("a host file knows ranges, and IPv6 addresses with and without brackets") {
  const auto hosts = ParseHostfile("node[1-2] slots=4\n::1 slots=2\n[2001:db8::7]:3\n", "hosts");
  INFO(hosts.status().ToString());
  REQUIRE(hosts.ok());
  CHECK(*hosts ==
        std::vector<HostSlots>{{"node1", 4}, {"node2", 4}, {"::1", 2}, {"2001:db8::7", 3}});
  const auto scoped = ParseHostfile("fe80::1%eth0 slots=2\n[fe80::2%eth0]:1\n", "hosts");
  INFO(scoped.status().ToString());
  REQUIRE(scoped.ok());
  CHECK(*scoped == std::vector<HostSlots>{{"fe80::1%eth0", 2}, {"fe80::2%eth0", 1}});
  CHECK_THAT(FileError("fe80::1%eth0:2 slots=2\n"), Catch::Contains("as [fe80::1%eth0]:slots"));
  CHECK_THAT(FileError("::1\n"), Catch::Contains("[::1]:slots"));
  CHECK_THAT(FileError("n[1-2\n"), Catch::StartsWith("hosts:1: 'n[1-2' has a '['"));
}

TEST_CASE("a malformed host list is refused with the entry and what is expected") {
  CHECK_THAT(HostsError(""), Catch::Contains("empty entry"));
  CHECK_THAT(HostsError("a:1,,b:1"), Catch::Contains("empty entry"));
  CHECK_THAT(HostsError("a:1,"), Catch::Contains("empty entry"));
  CHECK_THAT(HostsError("a:0"), Catch::Contains("from 1 to 1048576, not '0'"));
  CHECK_THAT(HostsError("a:-1"), Catch::Contains("not '-1'"));
  CHECK_THAT(HostsError("a:2x"), Catch::Contains("not '2x'"));
  CHECK_THAT(HostsError("a:"), Catch::Contains("not ''"));
  CHECK_THAT(HostsError("a:99999999999999999999"), Catch::Contains("number of slots"));
  CHECK_THAT(HostsError("a b:1"), Catch::Contains("'a b:1' is not a host"));
}

TEST_CASE("a host file may have comments, blank lines, tabs, CRLF, a BOM and no final newline") {
  const auto hosts = ParseHostfile(
      "\xEF\xBB\xBF# all of them\r\n\r\n localhost\tslots=2 # two\r\n\n127.0.0.1:1\r\n"
      "other slots = 3 max_slots=8\n   \t\nlast slots=4",
      "hosts");
  INFO(hosts.status().ToString());
  REQUIRE(hosts.ok());
  CHECK(*hosts ==
        std::vector<HostSlots>{{"localhost", 2}, {"127.0.0.1", 1}, {"other", 3}, {"last", 4}});
}

TEST_CASE("a bad line of a host file is an error with its number") {
  CHECK(FileError("a slots=1\n\nb slots=x\n") ==
        "hosts:3: 'slots=x': the number of slots must be an integer from 1 to 1048576");
  CHECK_THAT(FileError("# c\na 2\n"), Catch::StartsWith("hosts:2: '2' is not understood"));
  CHECK_THAT(FileError("a cores=2\n"), Catch::StartsWith("hosts:1: 'cores=2' is not understood"));
  CHECK_THAT(FileError("a:2 slots=2\n"), Catch::StartsWith("hosts:1: the slots of host a"));
  CHECK_THAT(FileError("a slots=\n"), Catch::StartsWith("hosts:1: 'slots='"));
  CHECK_THAT(FileError("a,b\n"), Catch::StartsWith("hosts:1: 'a,b' is not a host"));
  CHECK_THAT(FileError("# nothing\n"), Catch::StartsWith("hosts: no host in it"));
  CHECK_THAT(FileError(""), Catch::StartsWith("hosts: no host in it"));
}

TEST_CASE("without hosts all ranks are on one machine") {
  const std::vector<RankPlace> places = PlacesOk("localhost", 3);
  REQUIRE(places.size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(places[static_cast<std::size_t>(rank)] == RankPlace{.host = "localhost",
                                                              .rank = rank,
                                                              .size = 3,
                                                              .local_rank = rank,
                                                              .local_size = 3,
                                                              .cross_rank = 0,
                                                              .cross_size = 1});
  }
}

TEST_CASE("unequal hosts give every rank consistent local and cross numbers") {
  const std::vector<RankPlace> places = PlacesOk("localhost:1,127.0.0.1:3", 4);
  const auto numbers = [&places](std::size_t rank) {
    const RankPlace& p = places[rank];
    return Format("{} {}/{} {}/{}", p.host, p.local_rank, p.local_size, p.cross_rank, p.cross_size);
  };
  CHECK(numbers(0) == "localhost 0/1 0/2");
  CHECK(numbers(1) == "127.0.0.1 0/3 1/2");
  CHECK(numbers(2) == "127.0.0.1 1/3 0/1");
  CHECK(numbers(3) == "127.0.0.1 2/3 0/1");
}

TEST_CASE("a host that is named twice offers the sum of its slots") {
  const std::vector<RankPlace> places = PlacesOk("a:1,b:1,a:2", 4);
  CHECK(places[2].host == "a");
  CHECK(places[2].local_size == 3);
  CHECK(places[3].host == "b");
}

TEST_CASE("hosts that no rank reaches do not count") {
  const std::vector<RankPlace> places = PlacesOk("a:2,b:2", 2);
  CHECK(places[1].host == "a");
  CHECK(places[1].cross_size == 1);
}

TEST_CASE("too few slots are one line with the cure") {
  const auto places = PlaceRanks(HostsOk("localhost:2"), 3);
  REQUIRE_FALSE(places.ok());
  CHECK(places.status().message() ==
        "-np 3 needs 3 slots, but the hosts offer 2; use -np 2 or give a host more slots, e.g. "
        "-H localhost:3");
}

TEST_CASE("with several hosts each needs a number of slots") {
  const auto places = PlaceRanks(HostsOk("a:2,b"), 3);
  REQUIRE_FALSE(places.ok());
  CHECK_THAT(places.status().message(), Catch::Contains("host b has no number of slots"));
}

TEST_CASE("this machine is known by its names and addresses") {
  const std::vector<std::string> own = {"vm", "10.0.0.5"};
  for (const char* name : {"localhost", "127.0.0.1", "127.1.2.3", "::1", "vm", "10.0.0.5"}) {
    CHECK(IsThisMachine(name, own));
  }
  CHECK_FALSE(IsThisMachine("node7", own));
  CHECK_FALSE(IsThisMachine("127.evil.example", own));
}

TEST_CASE("the hosts of a job have their ranks, and who logs in") {
  const std::vector<HostSlots> hosts = HostsOk("vm:1,me@node7:2,node8:2,node9:2");
  const auto places = PlaceRanks(hosts, 4);
  REQUIRE(places.ok());
  const std::vector<std::string> own = {"vm"};
  CHECK(HostsOf(*places, hosts, own) == std::vector<HostRanks>{{"vm", "", true, 0, 1},
                                                               {"node7", "me", false, 1, 2},
                                                               {"node8", "", false, 3, 1}});
}

TEST_CASE("a user may stand before a host, also before a range and in a host file") {
  CHECK(
      HostsOk("me@a:1,you@n[1-2]:2,me@[::1]:3") ==
      std::vector<HostSlots>{{"a", 1, "me"}, {"n1", 2, "you"}, {"n2", 2, "you"}, {"::1", 3, "me"}});
  const auto file = ParseHostfile("me@a slots=2\n", "hosts");
  REQUIRE(file.ok());
  CHECK(*file == std::vector<HostSlots>{{"a", 2, "me"}});
  CHECK_THAT(HostsError("@a:1"), Catch::Contains("'@a:1' is not a host"));
  CHECK_THAT(HostsError("me@:1"), Catch::Contains("is not a host"));
  CHECK_THAT(HostsError("m e@a:1"), Catch::Contains("is not a host"));
}

TEST_CASE("a name that a program would take for an option is no host") {
  CHECK_THAT(HostsError("-x:1"), Catch::Contains("is not a host"));
  CHECK_THAT(HostsError("-lroot@a:1"), Catch::Contains("is not a host"));
  CHECK_THAT(HostsError("n1,-[1-2]:1"), Catch::Contains("is not a host"));
}

TEST_CASE("max_slots stands for slots where those are missing, and limits them") {
  const auto file = ParseHostfile("a max_slots=4\nb slots=2 max-slots=4\n", "hosts");
  REQUIRE(file.ok());
  CHECK(*file == std::vector<HostSlots>{{"a", 4}, {"b", 2}});
  CHECK(FileError("a slots=5 max_slots=4\n") == "hosts:1: host a has slots=5 and max_slots=4");
}

}  // namespace
}  // namespace hvl::launcher
