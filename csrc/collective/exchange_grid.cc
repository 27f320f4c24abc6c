#include "csrc/collective/exchange_grid.h"

#include <algorithm>

#include "csrc/base/check.h"

namespace hvl::collective {

ExchangeGrid::ExchangeGrid(int ranks, std::span<const int> group_ends)
    : row_ends_(group_ends.begin(), group_ends.end()) {
  HVL_CHECK(ranks > 0 && (group_ends.empty() || group_ends.back() == ranks), "rows of all ranks");
  if (row_ends_.size() > 1 && neighbours() <= kMostNeighbours) return;
  row_ends_.clear();
  int length = 1;
  while (length * length < ranks) ++length;
  for (int end = length; end < ranks; end += length) row_ends_.push_back(end);
  row_ends_.push_back(ranks);
}

int ExchangeGrid::RowOf(int rank) const {
  return static_cast<int>(std::ranges::upper_bound(row_ends_, rank) - row_ends_.begin());
}

// Along the own row to the place of `to`, if the row is that long; else to the own place in the row
// of `to`, which is longer.
int ExchangeGrid::Via(int from, int to) const {
  const int row = RowOf(from);
  const int target_row = RowOf(to);
  const int place = to - RowBegin(target_row);
  if (place < RowLength(row)) return RowBegin(row) + place;
  return RowBegin(target_row) + from - RowBegin(row);
}

int ExchangeGrid::neighbours() const {
  int longest = 0;
  for (int row = 0; row < static_cast<int>(row_ends_.size()); ++row) {
    longest = std::max(longest, RowLength(row));
  }
  return longest - 1 + static_cast<int>(row_ends_.size()) - 1;
}

}  // namespace hvl::collective
