// The coordinator does not believe everything: announcements that cannot be right are refused.
#include "csrc/plan/coordinator.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/plan/world.h"

namespace hvl::plan {
namespace {

/// A coordinator of two ranks where "x" (an allreduce) and "a" (an allgather) have ids 0 and 1.
class Fixture {
 public:
  Fixture() : coordinator_(2, 0, Options{}) {
    for (int rank = 0; rank < 2; ++rank) {
      wire::Announce announce;
      announce.fresh = {{Allreduce("x"), {}, false}, {Allgather("a"), {3}, false}};
      REQUIRE(Announce(rank, announce).ok());
    }
    coordinator_.OnBatchFinished(2, {}, effects_);
    REQUIRE(coordinator_.TakeDecisions().size() == 1);
  }

  Status Announce(int rank, const wire::Announce& announce) {
    return coordinator_.OnAnnounce(rank, wire::Announce(announce), {}, effects_);
  }

  Coordinator coordinator_;
  Effects effects_;
};

TEST_CASE("ids announced by all ranks run as one run of ids") {
  Fixture fixture;
  for (int rank = 0; rank < 2; ++rank) {
    wire::Announce announce;
    announce.acknowledged = 1;
    announce.known = {{0, 2}};
    announce.known_first_dims = {rank};
    CHECK(fixture.Announce(rank, announce).ok());
  }
  const std::vector<wire::Decide> decisions = fixture.coordinator_.TakeDecisions();
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].number == 2);
  CHECK(decisions[0].first_sequence == 3);
  REQUIRE(decisions[0].batches.size() == 2);
  CHECK(decisions[0].batches[1].first_dims == std::vector<std::int64_t>{0, 1});
}

TEST_CASE("an announcement that cannot be right is refused") {
  Fixture fixture;
  wire::Announce announce;
  announce.acknowledged = 1;
  SECTION("an id that was never assigned") { announce.known = {{2, 1}}; }
  SECTION("a run of ids that ends outside") {
    announce.known = {{0, 3}};
    announce.known_first_dims = {1};
  }
  SECTION("an allgather without its dimension") { announce.known = {{1, 1}}; }
  SECTION("a dimension too many") {
    announce.known = {{0, 1}};
    announce.known_first_dims = {1};
  }
  SECTION("an epoch that has not begun") { announce.epoch = 1; }
  SECTION("a decision that was never made") { announce.acknowledged = 2; }
  SECTION("an acknowledgement that is taken back") {
    REQUIRE(fixture.Announce(1, announce).ok());
    announce.acknowledged = 0;
  }
  SECTION("a name twice") {
    announce.known = {{0, 1}};
    announce.fresh = {{Allreduce("x", {9}), {}, false}};
  }
  SECTION("a name again before it has run") {
    announce.known = {{0, 1}};
    REQUIRE(fixture.Announce(1, announce).ok());
  }
  const Status status = fixture.Announce(1, announce);
  CHECK(status.code() == StatusCode::kInternal);
  CHECK_FALSE(status.message().empty());
}

TEST_CASE("a rank that never acknowledges failures is given up in the end") {
  Coordinator coordinator(3, 0, Options{});
  Effects effects;
  // Ranks 0 and 1 keep disagreeing; rank 2 is silent.
  for (int i = 0; i < 70000 && effects.fatal.ok(); ++i) {
    for (int rank = 0; rank < 2; ++rank) {
      wire::Announce announce;
      announce.acknowledged = static_cast<std::uint64_t>(i);
      announce.fresh = {{Allreduce("x", {rank}), {}, true}};
      const Status status = coordinator.OnAnnounce(rank, std::move(announce), {}, effects);
      REQUIRE(status.ok());
    }
    coordinator.Tick(TimePoint{} + std::chrono::hours(i + 1), effects);
    (void)coordinator.TakeDecisions();
  }
  CHECK(effects.fatal.code() == StatusCode::kResourceExhausted);
  CHECK(effects.fatal.culprit_rank() == 2);
}

}  // namespace
}  // namespace hvl::plan
