// Which processors each rank gets, and how many threads of computation. Pure.
//
// A rank's mask is inherited by all its threads and by the processes that feed it with data, so a
// rank gets whole cores with all their hardware threads, and never less than its share of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/topology.h"

namespace hvl::launcher {

/// --bind.
enum class BindPolicy : std::uint8_t { kNone, kCore, kNuma, kAuto };

std::optional<BindPolicy> ParseBindPolicy(std::string_view text);

struct Binding {
  std::vector<Processors> by_rank;  ///< empty = the ranks are not bound
  int threads_per_rank = 1;         ///< cores per rank, of the rank with the fewest
  std::string reason;               ///< why the ranks are not bound, or bound to what

  bool bound() const { return !by_rank.empty(); }
};

/// `quota` is what control groups allow, in processors. With more ranks than cores (or quota)
/// nothing is bound whatever the policy: somebody has to share, and the kernel shares better.
///
/// core: the cores, in order, are cut into as many pieces as there are ranks; pieces differ by one
///       core at most.
/// numa: a rank gets all cores of the node that its piece begins in.
/// auto: as numa where all nodes are alike and get the same number of ranks, else not at all. So
///       the load is spread as evenly as without binding, also when several jobs do the same on one
///       machine; a job that binds to cores cannot know that another one has not taken the same.
Binding BindRanks(const Topology& cores, BindPolicy policy, int rank_count,
                  std::optional<double> quota);

/// One line per rank for --report-bindings.
std::vector<std::string> BindingReport(const Binding& binding, const Topology& cores,
                                       int rank_count);

}  // namespace hvl::launcher
