// Which way control frames go between hosts. The ranks of a host are linked with each other. The
// lowest rank of each host, its leader, is also linked with the leaders of the neighbouring hosts
// in a tree: host h's parent is host (h - 1) / radix. Host 0, where rank 0 coordinates, is the
// root.
//
// There is one way between any two ranks, so frames of one rank to another one keep their order.
// A leader has at most radix + 1 links to other hosts, and a frame takes at most two ways through
// the depth of the tree, log(hosts) / log(radix).
#pragma once

#include <cstddef>
#include <vector>

namespace hvl::net {

class HostTree {
 public:
  /// `hosts` by rank, see NumberHosts. Requires radix >= 1.
  HostTree(const std::vector<int>& hosts, int own_rank, int radix);

  bool spans_hosts() const { return leaders_.size() > 1; }
  bool leads() const { return leads_; }
  /// Of this rank's host.
  int leader() const { return leaders_[static_cast<std::size_t>(own_host_)]; }
  bool on_this_host(int rank) const { return hosts_[static_cast<std::size_t>(rank)] == own_host_; }
  /// The linked peer that frames for another rank go to; the rank itself where it is linked.
  int next_hop(int rank) const { return next_hops_[static_cast<std::size_t>(rank)]; }
  bool is_linked(int rank) const { return next_hop(rank) == rank; }
  /// Whether the link to `rank` carries what ranks of different hosts send each other.
  bool is_branch(int rank) const {
    return spans_hosts() && is_linked(rank) && (leads_ || rank == leader());
  }
  /// Leaders of other hosts that this rank is linked with; none unless it leads.
  const std::vector<int>& neighbours() const { return neighbours_; }
  /// All ranks that are reached over the link to `peer`, itself included; ascending.
  std::vector<int> Behind(int peer) const;

 private:
  int LeaderTowards(int host, int radix) const;

  const std::vector<int> hosts_;  // by rank
  const int own_host_;
  bool leads_ = false;
  std::vector<int> leaders_;    // by host
  std::vector<int> next_hops_;  // by rank; the own entry does not matter
  std::vector<int> neighbours_;
};

}  // namespace hvl::net
