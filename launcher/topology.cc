#include "launcher/topology.h"

#include <algorithm>
#include <map>
#include <set>

#include "csrc/base/str.h"
#include "launcher/file.h"

namespace hvl::launcher {
namespace {

Processors ReadList(const std::string& path) {
  const std::optional<std::string> content = ReadFile(path);
  return content ? ParseProcessors(*content).value_or(Processors()) : Processors();
}

/// The node of each processor that belongs to one.
std::map<int, int> ReadNodes(const std::string& system) {
  std::map<int, int> nodes;
  for (const int node : ReadList(system + "/node/online")) {
    for (const int processor : ReadList(Format("{}/node/node{}/cpulist", system, node))) {
      nodes[processor] = node;
    }
  }
  return nodes;
}

}  // namespace

Topology ReadTopology(const std::string& system, const Processors& allowed) {
  const std::map<int, int> nodes = ReadNodes(system);
  std::map<std::pair<int, int>, Core> cores;  // by node and the core's first processor
  for (const int processor : allowed) {
    const Processors siblings =
        ReadList(Format("{}/cpu/cpu{}/topology/thread_siblings_list", system, processor));
    const int first = siblings.empty() ? processor : siblings.front();
    const auto node = nodes.find(processor);
    const int number = node == nodes.end() ? 0 : node->second;
    Core& core = cores[{number, first}];
    core.node = number;
    core.processors.push_back(processor);
  }
  Topology topology;
  for (auto& [key, core] : cores) topology.push_back(std::move(core));
  return topology;
}

int NodeCount(const Topology& cores) {
  std::set<int> nodes;
  for (const Core& core : cores) nodes.insert(core.node);
  return static_cast<int>(nodes.size());
}

}  // namespace hvl::launcher
