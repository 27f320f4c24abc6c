// Which processors share a core, and which cores a NUMA node, as the kernel tells in /sys.
#pragma once

#include <string>
#include <vector>

#include "launcher/processors.h"

namespace hvl::launcher {

struct Core {
  int node = 0;           ///< NUMA node: memory that is near
  Processors processors;  ///< its hardware threads, those that may be used

  bool operator==(const Core&) const = default;
};

/// Cores with at least one usable processor; those of a node side by side, in order of their
/// first processors.
using Topology = std::vector<Core>;

/// `system` is "/sys/devices/system". What it does not tell is taken for a machine with one node,
/// and one core per processor.
Topology ReadTopology(const std::string& system, const Processors& allowed);

/// How many nodes have usable cores.
int NodeCount(const Topology& cores);

}  // namespace hvl::launcher
