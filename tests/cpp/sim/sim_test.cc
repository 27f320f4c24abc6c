// Whole worlds from seeds. HVL_TEST_SEEDS says how many, HVL_TEST_SEED where to begin; by default
// 2,000, the same every time, so that a failure is the change's own. `tests/dev sim` looks at
// others and `hvl_sim` runs a seed again and shows its last events.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/cpp/sim/mutants.h"
#include "tests/cpp/sim/runner.h"
#include "tests/support/from_environment.h"

namespace hvl::sim {
namespace {

using test::FromEnvironment;

constexpr std::uint64_t kFirstSeed = 1;

TEST_CASE("the rules hold in every world") {
  const std::uint64_t count = FromEnvironment("HVL_TEST_SEEDS", 2000);
  const std::uint64_t first = FromEnvironment("HVL_TEST_SEED", kFirstSeed);
  INFO("HVL_TEST_SEED=" << first << " HVL_TEST_SEEDS=" << count);
  const Report report = RunSeeds(first, count, 0, plan::Planner::Create);
  INFO(report.text);
  REQUIRE_FALSE(report.failing_seed);
  WARN(report.statistics.ToString());
  if (count < 1000) return;
  // What is not exercised is not tested.
  const Statistics& seen = report.statistics;
  for (const std::uint64_t what :
       {seen.fused_batches, seen.mismatches, seen.timeouts, seen.departures, seen.fatal_ranks,
        seen.notices, seen.epochs, seen.registrations, seen.set_batches, seen.joins, seen.zeros,
        seen.matrices, seen.freezes, seen.buckets, seen.withdrawals}) {
    CHECK(what > 100);
  }
  CHECK(seen.strayed_sites > 10);
  CHECK(seen.deadlocks > 0);
  CHECK(seen.ended_rounds > 0);
  CHECK(std::all_of(seen.thaws.begin() + 1, seen.thaws.end(),
                    [](std::uint64_t thaws) { return thaws > 0; }));
}

TEST_CASE("the rules hold in worlds of 2, 3, 7 and 64 ranks") {
  const std::uint64_t first = FromEnvironment("HVL_TEST_SEED", kFirstSeed);
  INFO("HVL_TEST_SEED=" << first);
  for (const int size : {2, 3, 7, 64}) {
    const Report report = RunSeeds(first, size < 64 ? 200 : 40, size, plan::Planner::Create);
    INFO(report.text);
    REQUIRE_FALSE(report.failing_seed);
  }
}

TEST_CASE("the rules hold in worlds of 1,000 and 4,096 ranks") {
  const std::uint64_t first = FromEnvironment("HVL_TEST_SEED", kFirstSeed);
  INFO("HVL_TEST_SEED=" << first);
  for (const int size : {1000, 4096}) {
    const Report report = RunSeeds(first, size == 1000 ? 8 : 2, size, plan::Planner::Create);
    INFO(report.text);
    REQUIRE_FALSE(report.failing_seed);
  }
}

TEST_CASE("a seed always does the same") {
  const std::uint64_t seed = GENERATE(take(20, random(0, 1 << 30)));
  CHECK(ExplainSeed(seed, 0, plan::Planner::Create) == ExplainSeed(seed, 0, plan::Planner::Create));
}

TEST_CASE("every planted bug is noticed") {
  constexpr std::uint64_t kSeeds = 300;
  for (const Mutant& mutant : Mutants()) {
    INFO("a planner that " << mutant.name);
    const Report report = RunSeeds(1, kSeeds, 0, mutant.make);
    CHECK(report.failing_seed);
  }
}

}  // namespace
}  // namespace hvl::sim
