#include "csrc/plan/rank_set.h"

#include <catch2/catch.hpp>
#include <initializer_list>

namespace hvl::plan {
namespace {

RankSet Of(int size, std::initializer_list<int> ranks) {
  RankSet set(size);
  for (const int rank : ranks) set.Insert(rank);
  return set;
}

TEST_CASE("a rank set counts its members once, also beyond one machine word") {
  RankSet set(200);
  CHECK(set.empty());
  for (const int rank : {0, 63, 64, 127, 128, 199}) {
    CHECK_FALSE(set.Contains(rank));
    CHECK(set.Insert(rank));
    CHECK_FALSE(set.Insert(rank));
    CHECK(set.Contains(rank));
  }
  CHECK(set.count() == 6);
  CHECK(set.First() == 0);
  set.Erase(0);
  set.Erase(0);
  CHECK(set.count() == 5);
  CHECK(set.First() == 63);
  CHECK(set.Complement().count() == 195);
  CHECK_FALSE(set.Complement().Contains(199));
}

TEST_CASE("a rank set is full when all ranks of its world are in it") {
  for (const int size : {1, 2, 63, 64, 65, 128, 129}) {
    RankSet set(size);
    for (int rank = size - 1; rank >= 0; --rank) {
      CHECK_FALSE(set.full());
      set.Insert(rank);
    }
    CHECK(set.full());
    CHECK(set.Complement().empty());
    CHECK(set.Complement().First() == -1);
  }
}

TEST_CASE("the union of two sets holds the members of both") {
  RankSet set = Of(100, {1, 70});
  set.InsertAll(Of(100, {1, 2, 99}));
  CHECK(set == Of(100, {1, 2, 70, 99}));
}

TEST_CASE("ranks are listed as ranges") {
  CHECK(Of(8, {}).ToString() == "no rank");
  CHECK(Of(8, {3}).ToString() == "rank 3");
  CHECK(Of(8, {0, 1, 2, 5}).ToString() == "ranks 0-2, 5");
  CHECK(Of(8, {0, 1}).ToString() == "ranks 0, 1");
  CHECK(Of(8, {2, 5, 6, 7}).ToString() == "ranks 2, 5-7");
  CHECK(Of(1000, {}).Complement().ToString() == "ranks 0-999");
}

TEST_CASE("a long list of ranks is cut") {
  RankSet set(1000);
  for (int rank = 0; rank < 1000; rank += 2) set.Insert(rank);
  CHECK(set.ToString().ends_with(", 36, 38 and 480 more"));
}

}  // namespace
}  // namespace hvl::plan
