#include "csrc/plan/ids.h"

#include <catch2/catch.hpp>
#include <vector>

namespace hvl::plan {
namespace {

using Records = std::vector<std::uint32_t>;

TEST_CASE("ids are given out in order until they are used up") {
  Ids ids(2, 3);
  CHECK(ids.Assign(70) == 0U);
  CHECK(ids.Assign(71) == 1U);
  CHECK(ids.Assign(72) == 2U);
  CHECK_FALSE(ids.Assign(73));
  CHECK(ids.MayStartEpoch());
  CHECK(ids.Find(0, 1).value() == 71);
  CHECK(ids.Find(0, 3).status().code() == StatusCode::kInternal);
}

TEST_CASE("with a capacity of 0 there are no ids and no epochs") {
  Ids ids(2, 0);
  CHECK_FALSE(ids.Assign(1));
  CHECK_FALSE(ids.MayStartEpoch());
}

TEST_CASE("ids of the epoch before keep their meaning until all ranks have reached the new one") {
  Ids ids(2, 1);
  ids.Assign(70);
  CHECK(ids.StartEpoch() == Records{70});
  CHECK(ids.Assign(80) == 0U);
  CHECK(ids.Find(0, 0).value() == 70);
  CHECK(ids.Find(1, 0).value() == 80);
  CHECK_FALSE(ids.MayStartEpoch());
  CHECK(ids.TakeForgotten().empty());
  CHECK(ids.Enter(0, 0).ok());
  CHECK(ids.Enter(0, 1).ok());
  CHECK(ids.TakeForgotten().empty());
  CHECK(ids.Enter(1, 1).ok());
  CHECK(ids.TakeForgotten() == Records{70});
  CHECK(ids.TakeForgotten().empty());
  CHECK_FALSE(ids.Find(0, 0).ok());
  CHECK(ids.MayStartEpoch());
}

TEST_CASE("a rank neither goes back to an earlier epoch nor ahead of the coordinator") {
  Ids ids(2, 1);
  CHECK_FALSE(ids.Enter(0, 1).ok());
  ids.StartEpoch();
  CHECK(ids.Enter(0, 1).ok());
  CHECK_FALSE(ids.Enter(0, 0).ok());
  CHECK(ids.Enter(1, 0).ok());
}

}  // namespace
}  // namespace hvl::plan
