#include "csrc/base/rank_text.h"

#include <catch2/catch.hpp>
#include <vector>

namespace hvl {
namespace {

TEST_CASE("a list of ranks has each of them, in the order given") {
  CHECK(RankList({}) == "[]");
  CHECK(RankList(std::vector{4}) == "[4]");
  CHECK(RankList(std::vector{2, 0, 1}) == "[2, 0, 1]");
}

TEST_CASE("ranks in a sentence are joined to ranges, but for two neighbours") {
  CHECK(RanksText({}) == "no rank");
  CHECK(RanksText(std::vector{3}) == "rank 3");
  CHECK(RanksText(std::vector{0, 1}) == "ranks 0, 1");
  CHECK(RanksText(std::vector{2, 5, 6, 7}) == "ranks 2, 5-7");
  CHECK(RankRanges({}).empty());
  CHECK(RankRanges(std::vector{0, 1, 2, 5, 7, 8}) == "0-2, 5, 7, 8");
}

TEST_CASE("of many ranges the first are told, and how many ranks are left") {
  std::vector<int> ranks;
  for (int rank = 0; rank < 40; rank += 2) ranks.push_back(rank);
  CHECK(RankRanges(ranks).ends_with(", 36, 38"));
  ranks.insert(ranks.end(), {40, 41, 50});
  CHECK(RankRanges(ranks).ends_with(", 36, 38 and 3 more"));
}

}  // namespace
}  // namespace hvl
