// Planners with one bug each, to prove that the simulation would notice.
#pragma once

#include <vector>

#include "tests/cpp/sim/simulation.h"

namespace hvl::sim {

struct Mutant {
  const char* name;
  PlannerFactory make;
};

std::vector<Mutant> Mutants();

}  // namespace hvl::sim
