// The hosts that a batch system has given to the script that hvlrun runs in.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "horovodlite/status.h"
#include "launcher/env_block.h"
#include "launcher/host_plan.h"

namespace hvl::launcher {

struct Allocation {
  std::string system;  ///< "Slurm job 4711"
  std::string rsh;     ///< what reaches its hosts, as in StarterOptions
  std::vector<HostSlots> hosts;

  bool operator==(const Allocation&) const = default;
};

/// What Slurm, PBS or LSF say in the environment; nothing outside of their jobs, and in a step of
/// Slurm that has started several copies of hvlrun already. A lone host takes any number of ranks.
/// Reads the file that PBS and LSF name.
Result<std::optional<Allocation>> FindAllocation(const EnvBlock& env);

/// "2(x3),1" -> 2, 2, 2, 1: numbers for each host, as Slurm writes them.
Result<std::vector<int>> ParseCounts(std::string_view text);

}  // namespace hvl::launcher
