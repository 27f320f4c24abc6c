// The grid of an all-to-all: whom a rank has to know, and the way of what it has for others.
#include "csrc/collective/exchange_grid.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <random>
#include <set>
#include <vector>

namespace hvl::collective {
namespace {

using Groups = std::vector<int>;

// The ranks that each rank exchanges with, if everybody has something for everybody.
std::vector<std::set<int>> Neighbours(const ExchangeGrid& grid) {
  std::vector<std::set<int>> neighbours(static_cast<std::size_t>(grid.ranks()));
  const auto hop = [&neighbours](int from, int to) {
    if (from == to) return;
    neighbours[static_cast<std::size_t>(from)].insert(to);
    neighbours[static_cast<std::size_t>(to)].insert(from);
  };
  for (int from = 0; from < grid.ranks(); ++from) {
    for (int to = 0; to < grid.ranks(); ++to) {
      const int via = grid.Via(from, to);
      hop(from, via);
      hop(via, to);
    }
  }
  return neighbours;
}

std::size_t MostNeighbours(const ExchangeGrid& grid) {
  std::size_t most = 0;
  for (const auto& neighbours : Neighbours(grid)) most = std::max(most, neighbours.size());
  return most;
}

}  // namespace

TEST_CASE("in a grid of N ranks everybody knows about twice the square root of N", "[grid]") {
  for (int ranks = 1; ranks <= 130; ++ranks) {
    INFO(ranks << " ranks");
    const ExchangeGrid grid(ranks, {});
    CHECK(MostNeighbours(grid) <= static_cast<std::size_t>(grid.neighbours()));
    // A row is the root, rounded up; there are no more rows than that.
    const int root = grid.neighbours() / 2 + 1;
    CHECK((root - 1) * (root - 1) <= ranks);
  }
  CHECK(MostNeighbours(ExchangeGrid(64, {})) == 14);
  CHECK(ExchangeGrid(500, {}).neighbours() == 43);
}

TEST_CASE("rows of a grid are the groups, where they are even enough", "[grid]") {
  const Groups hosts = {8, 16, 24, 30};
  const ExchangeGrid grid(30, hosts);
  const auto host_of = [&hosts](int rank) {
    return std::ranges::upper_bound(hosts, rank) - hosts.begin();
  };
  for (int from = 0; from < 30; ++from) {
    for (int to = 0; to < 30; ++to) {
      const int via = grid.Via(from, to);
      const int crossings =
          (host_of(from) != host_of(via) ? 1 : 0) + (host_of(via) != host_of(to) ? 1 : 0);
      CHECK(crossings == (host_of(from) == host_of(to) ? 0 : 1));
    }
  }
  CHECK(MostNeighbours(grid) == 7 + 3);
  // One host of 99 ranks would know all of them.
  CHECK(ExchangeGrid(100, Groups{99, 100}).neighbours() == 18);
}

TEST_CASE("in uneven groups nothing goes through a third row or column", "[grid]") {
  std::mt19937 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed());
  for (int round = 0; round < 50; ++round) {
    Groups ends;
    int ranks = 0;
    for (unsigned group = 0; group < 2 + random() % 6; ++group)
      ends.push_back(ranks += 1 + static_cast<int>(random() % 9));
    const ExchangeGrid grid(ranks, ends);
    CHECK(MostNeighbours(grid) <= static_cast<std::size_t>(grid.neighbours()));
    for (int rank = 0; rank < ranks; ++rank) CHECK(grid.Via(rank, rank) == rank);
  }
}

}  // namespace hvl::collective
