// Which data plane a session gets, by where its ranks are and by the knobs.
#include "csrc/session/data_plane.h"

#include <catch2/catch.hpp>

#include <vector>

#include "tests/support/log_capture.h"
#include "tests/support/mesh_ranks.h"
#include "tests/support/worlds.h"

namespace hvl::session {
namespace {

// The name of the data plane of each rank, or why there is none.
std::vector<std::string> DataPlanes(const std::vector<int>& ranks_per_host,
                                    const test::Knobs& knobs, const Logger& logger = Logger()) {
  const auto meshes = test::JoinHosts(ranks_per_host);
  REQUIRE(meshes.ok());
  const int size = static_cast<int>(meshes->size());
  return test::RunRanks(size, [&](int rank) -> std::string {
    const auto config = test::ConfigOf(rank, size, knobs);
    if (!config.ok()) return config.status().ToString();
    const auto plane = MakeDataPlane(*config, *(*meshes)[static_cast<std::size_t>(rank)], logger);
    return plane.ok() ? std::string((*plane)->name()) : plane.status().message();
  });
}

std::vector<std::string> All(std::size_t ranks, const char* name) {
  return std::vector<std::string>(ranks, name);
}

TEST_CASE("ranks of one host share memory, those of several use both levels") {
  CHECK(DataPlanes({3}, {}) == All(3, "local"));
  CHECK(DataPlanes({2, 1}, {}) == All(3, "two-level"));
  CHECK(DataPlanes({1, 1}, {}) == All(2, "two-level"));
}

TEST_CASE("HVL_CPU_OPERATIONS=tcp means sockets everywhere, and local needs one host") {
  CHECK(DataPlanes({2}, {{"HVL_CPU_OPERATIONS", "tcp"}}) == All(2, "tcp"));
  CHECK(DataPlanes({2, 1}, {{"HVL_CPU_OPERATIONS", "tcp"}}) == All(3, "tcp"));
  CHECK(DataPlanes({2}, {{"HVL_CPU_OPERATIONS", "local"}}) == All(2, "local"));
  for (const std::string& refusal : DataPlanes({1, 1}, {{"HVL_CPU_OPERATIONS", "local"}})) {
    CHECK_THAT(refusal, Catch::Contains("on 2 hosts") && Catch::Contains("expected auto or tcp"));
  }
}

TEST_CASE("sums in other groups than the hosts go through sockets, and the log says so") {
  CHECK(DataPlanes({2, 1}, {{"HVL_SUM_GROUPS", "2,1"}}) == All(3, "two-level"));
  CHECK(DataPlanes({3}, {{"HVL_SUM_GROUPS", "2,1"}}) == All(3, "local"));
  const test::LogCapture capture;
  CHECK(DataPlanes({2, 1}, {{"HVL_SUM_GROUPS", "1,2"}}, capture.logger()) == All(3, "tcp"));
  CHECK(capture.Contains("HVL_SUM_GROUPS=1,2 are not the hosts"));
}

}  // namespace
}  // namespace hvl::session
