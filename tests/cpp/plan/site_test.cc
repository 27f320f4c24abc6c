// Where operations were submitted: unnamed ones of different places do not belong together.
#include <catch2/catch.hpp>
#include <string>

#include "tests/cpp/plan/world.h"

namespace hvl::plan {
namespace {

using Catch::Matchers::Contains;
using namespace std::chrono_literals;

constexpr const char* kName = "allreduce.noname.0";

Options With(UnnamedSites sites) {
  Options options;
  options.unnamed_sites = sites;
  return options;
}

TEST_CASE("unnamed operations of different places are a mismatch that names both") {
  World world(3);
  world.SubmitAt(0, "train.py:12", Allreduce(kName));
  const Ticket b = world.SubmitAt(1, "train.py:20", Allreduce(kName));
  world.SubmitAt(2, "train.py:12", Allreduce(kName));
  world.Deliver();
  REQUIRE(world.finished(1, b));
  CHECK(world.outcome(1, b).code() == StatusCode::kMismatch);
  CHECK(world.outcome(1, b).culprit_rank() == 1);
  CHECK_THAT(world.outcome(1, b).message(),
             Contains("differs between ranks: site: train.py:12 on ranks 0, 2, train.py:20 on rank "
                      "1") &&
                 Contains("HVL_UNNAMED_SITES"));
  // The next one of that name is compared anew.
  for (int rank = 0; rank < 3; ++rank) world.SubmitAt(rank, "train.py:30", Allreduce(kName));
  world.Deliver();
  CHECK(world.Batches(1) == kName);
}

TEST_CASE("a place that is not known agrees with every place") {
  World world(3);
  world.SubmitAt(0, "", Allreduce(kName));
  world.SubmitAt(1, "train.py:20", Allreduce(kName));
  world.SubmitAt(2, "", Allreduce(kName));
  world.Deliver();
  CHECK(world.Batches(2) == kName);
}

TEST_CASE("a mismatch of places waits for silent ranks like any other") {
  World world(3);
  const Ticket a = world.SubmitAt(0, "a.py:1", Allreduce(kName));
  world.SubmitAt(1, "b.py:2", Allreduce(kName));
  world.Deliver();
  CHECK_FALSE(world.finished(0, a));
  world.Advance(1s);
  REQUIRE(world.finished(0, a));
  CHECK_THAT(world.outcome(0, a).message(), Contains("(rank 2 not heard yet)"));
}

TEST_CASE("other differences are told together with the places") {
  World world(2);
  const Ticket a = world.SubmitAt(0, "a.py:1", Allreduce(kName, {4}));
  world.SubmitAt(1, "b.py:2", Allreduce(kName, {5}));
  world.Deliver();
  REQUIRE(world.finished(0, a));
  CHECK_THAT(world.outcome(0, a).message(),
             Contains("shape: [4] on rank 0, [5] on rank 1; site: a.py:1 on rank 0, b.py:2"));
}

TEST_CASE("named operations may come from different places, which a mismatch shows") {
  World world(2);
  world.SubmitAt(0, "a.py:1", Allreduce("x"), false);
  world.SubmitAt(1, "b.py:2", Allreduce("x"), false);
  world.Deliver();
  CHECK(world.Batches(1) == "x");
  world.FinishBatches();
  const Ticket a = world.SubmitAt(0, "a.py:1", Allreduce("x", {9}), false);
  world.SubmitAt(1, "b.py:2", Allreduce("x"), false);  // by its id; the place is from before
  world.Deliver();
  REQUIRE(world.finished(0, a));
  CHECK_THAT(world.outcome(0, a).message(),
             Contains("shape: [9] on rank 0, [4] on rank 1; submitted at a.py:1 on rank 0, b.py:2 "
                      "on rank 1. Cure: the tensor needs"));
}

TEST_CASE("joins of different places are one join") {
  World world(2);
  world.SubmitAt(0, "a.py:1", Join());
  world.SubmitAt(1, "b.py:2", Join());
  world.Deliver();
  CHECK(world.run(1).size() == 1);
}

TEST_CASE("on request different places are only warned of, once per pair, or not at all") {
  const UnnamedSites sites = GENERATE(UnnamedSites::kWarn, UnnamedSites::kIgnore);
  World world(2, With(sites));
  for (int i = 0; i < 3; ++i) {
    world.SubmitAt(0, "a.py:1", Allreduce(kName));
    world.SubmitAt(1, "b.py:2", Allreduce(kName));
    world.Deliver();
    world.FinishBatches();
  }
  CHECK(world.run(1).size() == 3);
  if (sites == UnnamedSites::kIgnore) {
    CHECK(world.notices(0).empty());
    return;
  }
  REQUIRE(world.notices(0).size() == 1);
  CHECK_THAT(world.notices(0)[0].text, Contains("a.py:1 on rank 0, b.py:2 on rank 1"));
  world.SubmitAt(0, "a.py:1", Allreduce(kName));
  world.SubmitAt(1, "c.py:3", Allreduce(kName));
  world.Deliver();
  CHECK(world.notices(0).size() == 2);
}

}  // namespace
}  // namespace hvl::plan
