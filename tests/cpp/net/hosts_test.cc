#include "csrc/net/hosts.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "csrc/net/process.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::net {
namespace {

std::vector<RankCard> CardsOf(const std::vector<std::string>& hosts) {
  std::vector<RankCard> cards;
  for (const std::string& host : hosts) {
    cards.push_back(
        {.address = {}, .pid_scope = {}, .host_id = host, .host_name = "on " + host, .blob = {}});
  }
  return cards;
}

}  // namespace

TEST_CASE("hosts are numbered by their lowest ranks", "[hosts]") {
  const auto hosts = NumberHosts(CardsOf({"b", "b", "a", "c", "c", "c"}));
  REQUIRE(hosts.ok());
  CHECK(*hosts == std::vector<int>{0, 0, 1, 2, 2, 2});
}

TEST_CASE("ranks of a host that do not follow each other are refused by name", "[hosts]") {
  const Status status = NumberHosts(CardsOf({"a", "a", "b", "a"})).status();
  CHECK(status.code() == StatusCode::kMismatch);
  CHECK(status.culprit_rank() == 3);
  CHECK_THAT(status.message(), Catch::Contains("ranks 0 and 3 are on one host (on a), but rank 2 "
                                               "between them is on another one (on b)"));
}

TEST_CASE("a process knows its host by this boot and its network namespace", "[hosts]") {
  CHECK(HostId() == HostId());
  CHECK_THAT(HostId(), Catch::Matches("[0-9a-f-]{36}/net:.[0-9]+."));
  CHECK_FALSE(HostName().empty());
}

TEST_CASE("a mesh knows who shares a host, and passes descriptors there only", "[hosts]") {
  const std::vector<int> ranks_per_host = {2, 3};
  auto meshes = test::JoinHosts(ranks_per_host);
  INFO(meshes.status().ToString());
  REQUIRE(meshes.ok());
  const auto passed = test::RunRanks(5, [&](int rank) {
    Mesh& mesh = *(*meshes)[static_cast<std::size_t>(rank)];
    auto fds = mesh.ExchangeFds(0);
    std::vector<bool> valid;
    if (fds.ok()) {
      for (const UniqueFd& fd : *fds) valid.push_back(fd.valid());
    }
    return valid;
  });
  CHECK((*meshes)[3]->hosts() == std::vector<int>{0, 0, 1, 1, 1});
  CHECK(passed[1] == std::vector<bool>{true, false, false, false, false});
  CHECK(passed[3] == std::vector<bool>{false, false, true, false, true});
}

}  // namespace hvl::net
