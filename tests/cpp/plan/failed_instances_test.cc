#include "csrc/plan/failed_instances.h"

#include <catch2/catch.hpp>
#include <initializer_list>
#include <vector>

namespace hvl::plan {
namespace {

using Records = std::vector<std::uint32_t>;

RankSet Of(std::initializer_list<int> ranks) {
  RankSet set(4);
  for (const int rank : ranks) set.Insert(rank);
  return set;
}

TEST_CASE("an announcement from before the rank knew belongs to the failed instance, once") {
  FailedInstances failed(4);
  Records closed;
  failed.Add(7, 1, Of({2, 3}));
  CHECK(failed.Consume(7, 2, closed));
  CHECK_FALSE(failed.Consume(7, 2, closed));  // its next one is of the next instance
  CHECK_FALSE(failed.Consume(8, 3, closed));  // another name
  CHECK_FALSE(failed.Consume(7, 0, closed));  // was not missing
  CHECK(closed.empty());
  CHECK(failed.SilentRank() == 3);
  CHECK(failed.Consume(7, 3, closed));
  CHECK(closed == Records{7});
  CHECK(failed.size() == 0);
}

TEST_CASE("what a rank has acknowledged it has accounted for itself") {
  FailedInstances failed(4);
  Records closed;
  failed.Add(7, 1, Of({2}));
  failed.Add(7, 4, Of({2, 3}));
  failed.Add(9, 6, Of({3}));
  CHECK(failed.Acknowledge(2, 3, 6, closed).ok());
  CHECK(closed == Records{7});
  CHECK(failed.Consume(7, 2, closed));  // of decision 4
  CHECK_FALSE(failed.Consume(7, 2, closed));
  CHECK(failed.Acknowledge(3, 6, 6, closed).ok());
  CHECK(closed == Records{7, 7, 9});
  CHECK(failed.size() == 0);
}

TEST_CASE("a rank acknowledges in order, and nothing that was not decided") {
  FailedInstances failed(4);
  Records closed;
  CHECK(failed.Acknowledge(1, 5, 5, closed).ok());
  CHECK(failed.Acknowledge(1, 5, 5, closed).ok());
  CHECK(failed.Acknowledge(1, 4, 5, closed).code() == StatusCode::kInternal);
  CHECK(failed.Acknowledge(1, 6, 5, closed).code() == StatusCode::kInternal);
}

}  // namespace
}  // namespace hvl::plan
