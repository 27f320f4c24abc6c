#include "csrc/collective/host_layout.h"

#include <algorithm>

#include "csrc/base/check.h"

namespace hvl::collective {

HostLayout::HostLayout(std::span<const int> hosts) {
  HVL_CHECK(!hosts.empty() && std::ranges::is_sorted(hosts), "ranks go from host to host");
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const bool is_last = rank + 1 == hosts.size() || hosts[rank + 1] != hosts[rank];
    if (is_last) ends_.push_back(static_cast<int>(rank) + 1);
  }
  columns_ = RanksOn(0);
  for (int host = 1; host < this->hosts(); ++host) columns_ = std::min(columns_, RanksOn(host));
}

int HostLayout::HostOf(int rank) const {
  return static_cast<int>(std::ranges::upper_bound(ends_, rank) - ends_.begin());
}

int HostLayout::ColumnOf(int rank) const {
  const int host = HostOf(rank);
  for (int column = 0; column < columns_; ++column) {
    if (Member(column, host) == rank) return column;
  }
  return -1;
}

std::vector<int> HostLayout::Column(int column) const {
  std::vector<int> ranks;
  for (int host = 0; host < hosts(); ++host) ranks.push_back(Member(column, host));
  return ranks;
}

}  // namespace hvl::collective
