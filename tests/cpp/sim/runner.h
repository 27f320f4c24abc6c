// Runs many seeds and tells about the first one that breaks a rule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/cpp/sim/simulation.h"

namespace hvl::sim {

struct Report {
  Statistics statistics;
  std::optional<std::uint64_t> failing_seed;
  std::string text;  ///< of the failure: the seed, the scenario, the violation, the last events
};

/// Seeds first, first + 1, ... `size` 0 = drawn from each seed.
Report RunSeeds(std::uint64_t first, std::uint64_t count, int size,
                const PlannerFactory& make_planner);

/// One seed, with the whole trace of its last events whether it fails or not.
std::string ExplainSeed(std::uint64_t seed, int size, const PlannerFactory& make_planner);

}  // namespace hvl::sim
