// The vocabulary of an operation: names and sizes of types, counts of elements.
#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "horovodlite/types.h"

namespace hvl {
namespace {

TEST_CASE("element types have the names and sizes of torch, unknown ones have neither") {
  CHECK(DTypeName(DType::kBfloat16) == "bfloat16");
  CHECK(DTypeName(DType::kBool) == "bool");
  CHECK(DTypeName(static_cast<DType>(200)) == "unknown");
  CHECK(DTypeBytes(DType::kFloat16) == 2);
  CHECK(DTypeBytes(DType::kInt64) == 8);
  CHECK(DTypeBytes(static_cast<DType>(200)) == 0);
}

TEST_CASE("reductions and operations have names") {
  CHECK(ReduceOpName(ReduceOp::kAverage) == "average");
  CHECK(ReduceOpName(static_cast<ReduceOp>(99)) == "unknown");
  CHECK(OpKindName(OpKind::kAllreduce) == "allreduce");
  CHECK(OpKindName(OpKind::kBarrier) == "barrier");
  CHECK(OpKindName(static_cast<OpKind>(99)) == "unknown");
}

TEST_CASE("a scalar has one element, a zero dimension makes none") {
  CHECK(ElementCount({}) == 1);
  CHECK(ElementCount({3, 4}) == 12);
  CHECK(ElementCount({3, 0, 4}) == 0);
}

TEST_CASE("a count above 2^31 is exact; one that does not fit, or a negative dimension, is -1") {
  const std::int64_t two32 = std::int64_t{1} << 32;
  CHECK(ElementCount({two32, 2}) == two32 * 2);
  CHECK(ElementCount({two32, two32}) == -1);
  CHECK(ElementCount({two32, two32, 0}) == 0);
  CHECK(ElementCount({-1}) == -1);
  CHECK(ElementCount({0, -1}) == -1);
  CHECK(ElementCount({std::numeric_limits<std::int64_t>::max()}) ==
        std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("a shape holds any number of dimensions, and is what it was after copies and moves") {
  Shape grown;
  std::vector<std::int64_t> expected;
  for (std::int64_t dim = 0; dim < 70; ++dim) {
    const Shape assigned(expected.begin(), expected.end());
    CHECK(assigned == grown);
    CHECK(std::equal(grown.begin(), grown.end(), expected.begin(), expected.end()));
    CHECK(grown.empty() == expected.empty());
    Shape copy = grown;
    copy.push_back(-1);
    CHECK_FALSE(copy == grown);
    CHECK(copy.size() == expected.size() + 1);
    const Shape moved = std::move(copy);
    copy = grown;
    CHECK(copy == grown);
    CHECK(moved[expected.size()] == -1);
    copy.assign(expected.begin(), expected.begin());
    CHECK(copy == Shape{});
    grown.push_back(dim);
    expected.push_back(dim);
    grown[0] = expected[0] = dim + 1;
    CHECK(grown.front() == dim + 1);
  }
  grown = {3, 4};
  CHECK(grown == Shape{3, 4});
}

TEST_CASE("a shape is written as torch writes it") {
  CHECK(ShapeToString(Shape{}) == "[]");
  CHECK(ShapeToString(Shape{2}) == "[2]");
  CHECK(ShapeToString(Shape{2, 3, 4}) == "[2, 3, 4]");
}

TEST_CASE("every pair of ranks has a process set of its own in each direction") {
  constexpr int kSize = 40;
  std::set<ProcessSetId> ids;
  for (int from = 0; from < kSize; ++from) {
    for (int to = 0; to < kSize; ++to) {
      if (from == to) continue;
      const ProcessSetId id = PairSet({from, to});
      CHECK(id >= kFirstPairSet);
      CHECK(ids.insert(id).second);
      const auto pair = PairOfSet(id, kSize);
      REQUIRE(pair);
      CHECK(pair->from == from);
      CHECK(pair->to == to);
      CHECK(PairOfSet(id, std::max(from, to)) == std::nullopt);
    }
  }
  CHECK(!PairOfSet(kWorldSet, kSize));
  CHECK(!PairOfSet(kFirstPairSet - 1, kSize));
  const auto last = PairOfSet(PairSet({kMostPairRanks - 1, kMostPairRanks - 2}), kMostPairRanks);
  REQUIRE(last);
  CHECK(last->from == kMostPairRanks - 1);
  CHECK(last->to == kMostPairRanks - 2);
}

}  // namespace
}  // namespace hvl
