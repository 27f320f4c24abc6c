#include "launcher/binding.h"

#include <algorithm>
#include <map>
#include <set>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

/// The nodes and how many cores of each may be used.
std::map<int, int> CoresOfNodes(const Topology& cores) {
  std::map<int, int> counts;
  for (const Core& core : cores) ++counts[core.node];
  return counts;
}

int CoreCount(const Topology& cores) { return static_cast<int>(cores.size()); }

/// Cores that may be kept busy at once.
int UsableCores(const Topology& cores, std::optional<double> quota) {
  const int count = CoreCount(cores);
  return quota ? std::clamp(static_cast<int>(*quota), 1, count) : count;
}

/// Where the piece of a rank begins, when `count` cores are cut for `rank_count` ranks.
std::size_t PieceBegin(int rank, int rank_count, std::size_t count) {
  return static_cast<std::size_t>(rank) * count / static_cast<std::size_t>(rank_count);
}

Processors Sorted(Processors processors) {
  std::sort(processors.begin(), processors.end());
  return processors;
}

Binding Unbound(int usable, int rank_count, std::string reason) {
  return {.by_rank = {},
          .threads_per_rank = std::max(1, usable / rank_count),
          .reason = std::move(reason)};
}

Binding BindToCores(const Topology& cores, int rank_count) {
  Binding binding;
  for (int rank = 0; rank < rank_count; ++rank) {
    Processors processors;
    const std::size_t end = PieceBegin(rank + 1, rank_count, cores.size());
    for (std::size_t i = PieceBegin(rank, rank_count, cores.size()); i < end; ++i) {
      processors.insert(processors.end(), cores[i].processors.begin(), cores[i].processors.end());
    }
    binding.by_rank.push_back(Sorted(std::move(processors)));
  }
  binding.threads_per_rank = CoreCount(cores) / rank_count;
  binding.reason = "each to its own cores";
  return binding;
}

Binding BindToNodes(const Topology& cores, int rank_count) {
  std::map<int, Processors> processors;
  for (const Core& core : cores) {
    Processors& all = processors[core.node];
    all.insert(all.end(), core.processors.begin(), core.processors.end());
  }
  Binding binding;
  std::map<int, int> ranks_of;
  for (int rank = 0; rank < rank_count; ++rank) {
    const int node = cores[PieceBegin(rank, rank_count, cores.size())].node;
    ++ranks_of[node];
    binding.by_rank.push_back(Sorted(processors[node]));
  }
  binding.threads_per_rank = CoreCount(cores);
  const std::map<int, int> cores_of = CoresOfNodes(cores);
  for (const auto& [node, ranks] : ranks_of) {
    binding.threads_per_rank = std::min(binding.threads_per_rank, cores_of.at(node) / ranks);
  }
  binding.threads_per_rank = std::max(1, binding.threads_per_rank);
  binding.reason = "each to the cores of a NUMA node";
  return binding;
}

/// Why "auto" binds nothing; empty when it binds to nodes.
std::string WhyNotAuto(const Topology& cores, int rank_count) {
  const std::map<int, int> nodes = CoresOfNodes(cores);
  if (nodes.size() == 1) return "all cores that may be used are of one NUMA node";
  if (rank_count % static_cast<int>(nodes.size()) != 0) {
    return Format("{} ranks do not divide evenly among {} NUMA nodes", rank_count, nodes.size());
  }
  const int first = nodes.begin()->second;
  const bool alike = std::all_of(nodes.begin(), nodes.end(),
                                 [first](const auto& node) { return node.second == first; });
  return alike ? "" : "the NUMA nodes differ in how many of their cores may be used";
}

/// "4 cores of NUMA node 0 (processors 0-3)".
std::string Describe(const Processors& processors, const Topology& cores) {
  const std::set<int> mine(processors.begin(), processors.end());
  int count = 0;
  std::set<int> nodes;
  for (const Core& core : cores) {
    if (!mine.contains(core.processors.front())) continue;
    ++count;
    nodes.insert(core.node);
  }
  return Format("{} core{} of NUMA node{} {} (processors {})", count, count == 1 ? "" : "s",
                nodes.size() == 1 ? "" : "s", ProcessorText({nodes.begin(), nodes.end()}),
                ProcessorText(processors));
}

}  // namespace

std::optional<BindPolicy> ParseBindPolicy(std::string_view text) {
  if (text == "none") return BindPolicy::kNone;
  if (text == "core") return BindPolicy::kCore;
  if (text == "numa") return BindPolicy::kNuma;
  if (text == "auto") return BindPolicy::kAuto;
  return std::nullopt;
}

Binding BindRanks(const Topology& cores, BindPolicy policy, int rank_count,
                  std::optional<double> quota) {
  if (cores.empty()) return Unbound(1, rank_count, "the system does not tell its processors");
  const int usable = UsableCores(cores, quota);
  if (policy == BindPolicy::kNone) return Unbound(usable, rank_count, "--bind none");
  if (rank_count > usable) {
    const bool by_quota = usable < CoreCount(cores);
    return Unbound(usable, rank_count,
                   Format("{} ranks outnumber the {} core{} that {}", rank_count, usable,
                          usable == 1 ? "" : "s",
                          by_quota ? "the quota of the control group allows" : "may be used"));
  }
  if (policy == BindPolicy::kAuto) {
    std::string reason = WhyNotAuto(cores, rank_count);
    if (!reason.empty()) return Unbound(usable, rank_count, std::move(reason));
  }
  Binding binding =
      policy == BindPolicy::kCore ? BindToCores(cores, rank_count) : BindToNodes(cores, rank_count);
  binding.threads_per_rank = std::min(binding.threads_per_rank, std::max(1, usable / rank_count));
  return binding;
}

std::vector<std::string> BindingReport(const Binding& binding, const Topology& cores,
                                       int rank_count) {
  std::vector<std::string> lines;
  if (!binding.bound()) {
    Processors all;
    for (const Core& core : cores) {
      all.insert(all.end(), core.processors.begin(), core.processors.end());
    }
    const std::string who =
        rank_count == 1 ? "rank 0 is" : Format("ranks 0-{} are", rank_count - 1);
    return {Format("{} not bound to processors: {}; there are {}", who, binding.reason,
                   Describe(Sorted(std::move(all)), cores))};
  }
  for (int rank = 0; rank < rank_count; ++rank) {
    lines.push_back(Format("rank {} is bound to {}", rank,
                           Describe(binding.by_rank[static_cast<std::size_t>(rank)], cores)));
  }
  return lines;
}

}  // namespace hvl::launcher
