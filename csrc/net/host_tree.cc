#include "csrc/net/host_tree.h"

#include <algorithm>

#include "csrc/base/check.h"

namespace hvl::net {

HostTree::HostTree(const std::vector<int>& hosts, int own_rank, int radix)
    : hosts_(hosts), own_host_(hosts[static_cast<std::size_t>(own_rank)]) {
  HVL_CHECK(radix >= 1, "a tree needs a radix");
  const int size = static_cast<int>(hosts_.size());
  for (int rank = 0; rank < size; ++rank) {
    if (hosts_[static_cast<std::size_t>(rank)] == static_cast<int>(leaders_.size()))
      leaders_.push_back(rank);
  }
  const int own_leader = leaders_[static_cast<std::size_t>(own_host_)];
  leads_ = own_leader == own_rank;
  for (int rank = 0; rank < size; ++rank) {
    if (on_this_host(rank)) {
      next_hops_.push_back(rank);
    } else {
      const int host = hosts_[static_cast<std::size_t>(rank)];
      next_hops_.push_back(leads_ ? LeaderTowards(host, radix) : own_leader);
      if (leads_ && next_hops_.back() == rank) neighbours_.push_back(rank);
    }
  }
}

// Up from `host` to the root: the way passes this host when the target is below it.
int HostTree::LeaderTowards(int host, int radix) const {
  for (int below = host; below != 0; below = (below - 1) / radix) {
    if ((below - 1) / radix == own_host_) return leaders_[static_cast<std::size_t>(below)];
  }
  return leaders_[static_cast<std::size_t>((own_host_ - 1) / radix)];
}

std::vector<int> HostTree::Behind(int peer) const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < next_hops_.size(); ++rank) {
    if (next_hops_[rank] == peer) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace hvl::net
