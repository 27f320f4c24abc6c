#include "tests/cpp/sim/runner.h"

#include "csrc/base/str.h"

namespace hvl::sim {

std::string ExplainSeed(std::uint64_t seed, int size, const PlannerFactory& make_planner) {
  const Scenario scenario = MakeScenario(seed, size);
  const Outcome outcome = Simulation(scenario, make_planner, true).Run();
  std::string text = Format("seed {}: {}\n", seed, scenario.Describe());
  for (const std::string& line : outcome.trace) text += line + "\n";
  text +=
      outcome.violation ? "VIOLATION: " + *outcome.violation : std::string("no rule was broken");
  return text + Format("\nagain: hvl_sim --seeds 1 --seed {}{} --verbose\n", seed,
                       size > 0 ? Format(" --ranks {}", size) : "");
}

Report RunSeeds(std::uint64_t first, std::uint64_t count, int size,
                const PlannerFactory& make_planner) {
  Report report;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Scenario scenario = MakeScenario(seed, size);
    const Outcome outcome = Simulation(scenario, make_planner, false).Run();
    report.statistics.Add(outcome.statistics);
    if (!outcome.violation) continue;
    report.failing_seed = seed;
    report.text = ExplainSeed(seed, size, make_planner);
    return report;
  }
  return report;
}

}  // namespace hvl::sim
