// Who gets which processors.
#include "launcher/binding.h"

#include <catch2/catch.hpp>

#include <random>
#include <set>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

using Policy = BindPolicy;
using Masks = std::vector<Processors>;

/// Nodes with so many cores of two hardware threads each; second threads are numbered last.
Topology Machine(const std::vector<int>& cores_of_nodes) {
  int count = 0;
  for (const int cores : cores_of_nodes) count += cores;
  Topology topology;
  for (std::size_t node = 0; node < cores_of_nodes.size(); ++node) {
    for (int i = 0; i < cores_of_nodes[node]; ++i) {
      const int core = static_cast<int>(topology.size());
      topology.push_back({static_cast<int>(node), {core, core + count}});
    }
  }
  return topology;
}

TEST_CASE("core: each rank gets its share of the cores, with all their threads") {
  const Binding binding = BindRanks(Machine({4}), Policy::kCore, 2, std::nullopt);
  CHECK(binding.by_rank == Masks{{0, 1, 4, 5}, {2, 3, 6, 7}});
  CHECK(binding.threads_per_rank == 2);
}

TEST_CASE("core: shares differ by one core at most, and threads are those of the smallest") {
  const Binding binding = BindRanks(Machine({7}), Policy::kCore, 2, std::nullopt);
  REQUIRE(binding.by_rank.size() == 2);
  CHECK(binding.by_rank[0].size() == 6);
  CHECK(binding.by_rank[1].size() == 8);
  CHECK(binding.threads_per_rank == 3);
}

TEST_CASE("numa: each rank gets all cores of a node, neighbours the same") {
  const Binding binding = BindRanks(Machine({2, 2}), Policy::kNuma, 4, std::nullopt);
  CHECK(binding.by_rank == Masks{{0, 1, 4, 5}, {0, 1, 4, 5}, {2, 3, 6, 7}, {2, 3, 6, 7}});
  CHECK(binding.threads_per_rank == 1);
}

TEST_CASE("numa: a lone rank computes with the cores of its node, not of the machine") {
  const Binding binding = BindRanks(Machine({3, 3}), Policy::kNuma, 1, std::nullopt);
  CHECK(binding.by_rank == Masks{{0, 1, 2, 6, 7, 8}});
  CHECK(binding.threads_per_rank == 3);
}

TEST_CASE("auto binds to nodes that are alike and get the same number of ranks, else nothing") {
  CHECK(BindRanks(Machine({4, 4}), Policy::kAuto, 2, std::nullopt).by_rank.size() == 2);
  CHECK(BindRanks(Machine({4, 4}), Policy::kAuto, 8, std::nullopt).by_rank.size() == 8);
  CHECK_FALSE(BindRanks(Machine({4, 4}), Policy::kAuto, 1, std::nullopt).bound());
  CHECK_FALSE(BindRanks(Machine({4, 4}), Policy::kAuto, 3, std::nullopt).bound());
  CHECK_FALSE(BindRanks(Machine({8}), Policy::kAuto, 2, std::nullopt).bound());
  CHECK_FALSE(BindRanks(Machine({6, 2}), Policy::kAuto, 2, std::nullopt).bound());
}

TEST_CASE("more ranks than cores are never bound, and compute with one thread each") {
  for (const Policy policy : {Policy::kCore, Policy::kNuma, Policy::kAuto, Policy::kNone}) {
    const Binding binding = BindRanks(Machine({1, 1}), policy, 4, std::nullopt);
    CHECK_FALSE(binding.bound());
    CHECK(binding.threads_per_rank == 1);
  }
}

TEST_CASE("a quota counts like cores: for threads, and for ranks that outnumber it") {
  const Topology machine = Machine({8, 8});
  CHECK(BindRanks(machine, Policy::kAuto, 2, 5.5).threads_per_rank == 2);
  CHECK(BindRanks(machine, Policy::kNone, 2, 0.5).threads_per_rank == 1);
  const Binding crowded = BindRanks(machine, Policy::kAuto, 4, 3.0);
  CHECK_FALSE(crowded.bound());
  CHECK(crowded.reason ==
        "4 ranks outnumber the 3 cores that the quota of the control group allows");
  CHECK(BindRanks(machine, Policy::kNone, 2, 100.0).threads_per_rank == 8);
}

TEST_CASE("a machine that tells nothing binds nothing") {
  CHECK_FALSE(BindRanks({}, Policy::kCore, 2, std::nullopt).bound());
}

TEST_CASE("the report names cores, node and processors, or why there is no binding") {
  const Topology machine = Machine({2, 2});
  CHECK(BindingReport(BindRanks(machine, Policy::kCore, 2, std::nullopt), machine, 2) ==
        std::vector<std::string>{"rank 0 is bound to 2 cores of NUMA node 0 (processors 0-1,4-5)",
                                 "rank 1 is bound to 2 cores of NUMA node 1 (processors 2-3,6-7)"});
  CHECK(BindingReport(BindRanks(machine, Policy::kAuto, 3, std::nullopt), machine, 3) ==
        std::vector<std::string>{
            "ranks 0-2 are not bound to processors: 3 ranks do not divide evenly among 2 NUMA "
            "nodes; there are 4 cores of NUMA nodes 0-1 (processors 0-7)"});
}

TEST_CASE("whatever the machine, nobody gets less than a fair share or foreign processors") {
  const auto seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::vector<int> nodes(1 + random() % 4);
    for (int& cores : nodes) cores = 1 + static_cast<int>(random() % 9);
    const Topology machine = Machine(nodes);
    const int ranks = 1 + static_cast<int>(random() % 12);
    const auto policy = static_cast<Policy>(random() % 4);
    const Binding binding = BindRanks(machine, policy, ranks, std::nullopt);
    const auto cores = machine.size();
    REQUIRE(binding.threads_per_rank >= 1);
    if (static_cast<std::size_t>(ranks) > cores) REQUIRE_FALSE(binding.bound());
    if (!binding.bound()) continue;
    REQUIRE(binding.threads_per_rank <= static_cast<int>(cores) / ranks);
    std::set<int> all;
    for (const Processors& mine : binding.by_rank) {
      REQUIRE(mine.size() >= 2 * static_cast<std::size_t>(binding.threads_per_rank));
      REQUIRE(std::is_sorted(mine.begin(), mine.end()));
      REQUIRE(mine.back() < static_cast<int>(2 * cores));
      if (policy != Policy::kCore) continue;
      for (const int processor : mine) REQUIRE(all.insert(processor).second);
    }
  }
}

}  // namespace
}  // namespace hvl::launcher
