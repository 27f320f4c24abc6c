// Who passes on what in an all-to-all of ranks that do not all know one another. Pure arithmetic.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace hvl::collective {

/// Ranks in rows, from left to right and row by row; rows need not be of the same length. A rank
/// exchanges with those of its row and with those at its place in other rows, and what it has for
/// any other rank goes through one of them.
class ExchangeGrid {
 public:
  /// With the groups that end at `group_ends` as rows, so that a byte changes groups once; in a
  /// square where there are no groups, or where they are so uneven that a rank would have more
  /// than kMostNeighbours.
  ExchangeGrid(int ranks, std::span<const int> group_ends);

  static constexpr int kMostNeighbours = 48;

  int ranks() const { return row_ends_.back(); }
  /// First one hop to this rank, then one to `to`; `from` or `to` itself where one hop is enough.
  int Via(int from, int to) const;
  /// How many ranks a rank exchanges with, at most.
  int neighbours() const;

 private:
  int RowOf(int rank) const;
  int RowBegin(int row) const {
    return row == 0 ? 0 : row_ends_[static_cast<std::size_t>(row) - 1];
  }
  int RowLength(int row) const { return row_ends_[static_cast<std::size_t>(row)] - RowBegin(row); }

  std::vector<int> row_ends_;
};

}  // namespace hvl::collective
