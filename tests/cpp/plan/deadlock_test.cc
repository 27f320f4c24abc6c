// Ranks that wait for each other: which are failed, which are not, and how the numbers of unnamed
// operations agree again afterwards.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/cpp/plan/world.h"

namespace hvl::plan {
namespace {

using Catch::Matchers::Contains;
using namespace std::chrono_literals;

const wire::Signature kGather = Allgather("allgather.noname.0");
const wire::Signature kSum = Allreduce("allreduce.noname.0");

/// An allgather announces its first dimension.
Ticket Gather(World& world, int rank, const wire::Signature& signature = kGather) {
  const Ticket ticket = world.Submit(rank, signature, {1}, /*transient=*/true);
  world.Flush(rank);
  world.Deliver();
  return ticket;
}

Ticket BlockInGather(World& world, int rank, const wire::Signature& signature = kGather) {
  const Ticket ticket = Gather(world, rank, signature);
  world.Await(rank, signature.name, Waiter::kUnnamed, signature.process_set);
  return ticket;
}

TEST_CASE("ranks that wait for each other in unnamed operations fail and see who waits where") {
  const UnnamedSites sites =
      GENERATE(UnnamedSites::kError, UnnamedSites::kWarn, UnnamedSites::kIgnore);
  Options options;
  options.unnamed_sites = sites;
  World world(3, options);
  std::vector<Ticket> tickets;
  tickets.push_back(world.BlockIn(0, "train.py:12", Barrier("barrier.noname.0")));
  for (const int rank : {1, 2}) tickets.push_back(world.BlockIn(rank, "train.py:14", kSum));
  world.Deliver();
  world.Advance(4999ms);
  for (int rank = 0; rank < 3; ++rank) CHECK(world.outcomes(rank) == 0);
  world.Advance(1ms);
  for (int rank = 0; rank < 3; ++rank) {
    const Ticket ticket = tickets[static_cast<std::size_t>(rank)];
    REQUIRE(world.finished(rank, ticket));
    CHECK(world.outcome(rank, ticket).code() == StatusCode::kMismatch);
    CHECK(world.outcome(rank, ticket).culprit_rank() == 0);
    CHECK_THAT(world.outcome(rank, ticket).message(),
               Contains("ranks wait for each other: rank 0 in barrier 'barrier.noname.0' (at "
                        "train.py:12 on rank 0), ranks 1, 2 in allreduce 'allreduce.noname.0' (at "
                        "train.py:14 on ranks 1, 2)") &&
                   Contains("Cure: submit unnamed operations in the same order on all ranks"));
    CHECK(world.RoundOf(rank) == 1);
  }
}

TEST_CASE("after it the numbers of all kinds agree again on all ranks") {
  World world(2);
  BlockInGather(world, 0);
  world.BlockIn(1, "", kSum);
  world.Advance(5s);
  REQUIRE(world.outcomes(0) == 1);
  REQUIRE(world.outcomes(1) == 1);
  // Rank 0 has had an allgather more than rank 1, and an allreduce less.
  const wire::Signature sum = Allreduce("allreduce.noname.1.0");
  const wire::Signature gather = Allgather("allgather.noname.1.0");
  for (const int rank : {0, 1}) world.SubmitAt(rank, "", sum);
  for (const int rank : {0, 1}) Gather(world, rank, gather);
  world.FinishBatches();
  for (const int rank : {0, 1}) {
    CHECK(world.Batches(rank) == "allreduce.noname.1.0 | allgather.noname.1.0");
    CHECK(world.outcomes(rank) == 1);
    CHECK(world.fatal(rank).ok());
  }
}

TEST_CASE("a rank that is slow hears of it by its next unnamed operation") {
  World world(3);
  world.BlockIn(0, "a.py:1", Barrier("barrier.noname.0"));
  world.BlockIn(1, "a.py:2", kSum);
  world.Deliver();
  world.Advance(5s);
  CHECK(world.outcomes(0) == 1);
  CHECK(world.outcomes(1) == 1);
  const Ticket late = world.SubmitAt(2, "a.py:2", Allreduce("allreduce.noname.1.0"));
  REQUIRE(world.finished(2, late));
  CHECK_THAT(world.outcome(2, late).message(), Contains("ranks wait for each other"));
  for (int rank = 0; rank < 3; ++rank) {
    world.SubmitAt(rank, "a.py:3", Allreduce("allreduce.noname.1.0"));
  }
  world.Deliver();
  CHECK(world.Batches(2) == "allreduce.noname.1.0");
}

TEST_CASE("an announcement that crosses the end of its round belongs to it") {
  World world(3);
  world.BlockIn(0, "", Barrier("barrier.noname.0"));
  world.BlockIn(1, "", kSum);
  world.Deliver();
  world.Pass(5s);
  const Ticket crossing = world.SubmitAt(2, "", kSum);
  REQUIRE(world.DeliverOne(1, 0));  // what makes the contradiction known
  REQUIRE(world.DeliverOne(0, 2));
  CHECK(world.finished(2, crossing));
  REQUIRE(world.frames_waiting(2, 0) == 1);
  world.Deliver();
  const wire::Signature next = Allreduce("allreduce.noname.1.0");
  for (int rank = 0; rank < 3; ++rank) world.SubmitAt(rank, "", next);
  world.Deliver();
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(world.Batches(rank) == "allreduce.noname.1.0");
    CHECK(world.fatal(rank).ok());
  }
}

TEST_CASE("what was numbered in a round that has ended fails with it") {
  World world(2);
  BlockInGather(world, 0);
  world.BlockIn(1, "", kSum);
  world.Advance(5s);
  // Another thread had a number and was not heard when the round ended.
  Effects effects;
  world.planner(0).Submit({100, Allreduce("allreduce.noname.7"), {}, true, "", 0}, world.now(),
                          effects);
  REQUIRE(effects.finish.size() == 1);
  CHECK_THAT(effects.finish[0].status.message(), Contains("ranks wait for each other"));
}

TEST_CASE("what all ranks had submitted runs, although a round ends") {
  World world(2);
  for (const int rank : {0, 1}) world.SubmitAt(rank, "", Broadcast("broadcast.noname.0"));
  world.Deliver();
  for (const int rank : {0, 1}) world.SubmitAt(rank, "", Allreduce("allreduce.noname.5"));
  world.Deliver();  // gathers, as the data plane is busy
  REQUIRE(world.run(0).size() == 1);
  BlockInGather(world, 0);
  world.BlockIn(1, "", kSum);
  world.Advance(5s);
  for (const int rank : {0, 1}) {
    CHECK(world.Batches(rank) == "broadcast.noname.0 | allreduce.noname.5");
    CHECK(world.outcomes(rank) == 1);
  }
}

// ---- programs that can go on

TEST_CASE("unnamed operations in flight may be of other kinds in another order on each rank") {
  World world(2);
  Gather(world, 0);
  world.SubmitAt(1, "", kSum);
  world.Deliver();
  world.Advance(30s);
  // Rank 1 waits already, rank 0 submits the other one only now.
  world.Await(1, "allreduce.noname.0", Waiter::kUnnamed);
  world.Advance(30s);
  world.SubmitAt(0, "", kSum);
  world.Deliver();
  CHECK(world.Batches(1) == "allreduce.noname.0");
  world.Await(0, "allgather.noname.0", Waiter::kUnnamed);
  world.Advance(30s);
  Gather(world, 1);
  world.FinishBatches();
  CHECK(world.Batches(0) == "allreduce.noname.0 | allgather.noname.0");
  CHECK(world.outcomes(0) == 0);
}

TEST_CASE("ranks that wait for one that is slow are not failed") {
  World world(3);
  for (const int rank : {0, 1}) world.BlockIn(rank, "", kSum);
  world.Deliver();
  world.Advance(50s);
  CHECK(world.outcomes(0) == 0);
  world.SubmitAt(2, "", kSum);
  world.Deliver();
  CHECK(world.Batches(0) == "allreduce.noname.0");
}

TEST_CASE("a thread that may give up, or one of several, is not blocked") {
  World world(2);
  BlockInGather(world, 0);
  world.SubmitAt(1, "", kSum);
  world.Await(1, "allreduce.noname.0", Waiter::kAny);
  world.Deliver();
  world.Advance(50s);
  CHECK(world.outcomes(0) == 0);
  Gather(world, 1);
  CHECK(world.Batches(0) == "allgather.noname.0");
}

TEST_CASE("a rank takes back that it is blocked") {
  World world(2);
  BlockInGather(world, 0);
  world.Advance(5s);  // rank 0 has said so
  SECTION("when the wait is interrupted") {
    world.Await(0, "allgather.noname.0", Waiter::kAny);
    world.Advance(0s);
  }
  SECTION("when another thread submits an unnamed operation") {
    world.SubmitAt(0, "", Barrier("barrier.noname.0"));
  }
  world.Deliver();
  world.BlockIn(1, "", kSum);
  world.Deliver();
  world.Advance(5s);
  CHECK(world.outcomes(1) == 0);
  world.SubmitAt(0, "", kSum);
  world.Deliver();
  CHECK(world.Batches(1) == "allreduce.noname.0");
}

TEST_CASE("named operations are waited for only from a thread that submits nothing else") {
  World world(2);
  const Waiter waiter = GENERATE(Waiter::kUnnamed, Waiter::kAlone);
  const Ticket gather = Gather(world, 0);
  world.Await(0, "allgather.noname.0", waiter);
  const Ticket loss = world.SubmitNow(1, Allreduce("loss"));
  world.Await(1, "loss", Waiter::kAlone);
  world.Deliver();
  world.Advance(5s);
  if (waiter == Waiter::kUnnamed) {  // another thread of rank 0 may submit 'loss'
    CHECK(world.outcomes(0) == 0);
    CHECK(world.outcomes(1) == 0);
    return;
  }
  REQUIRE(world.finished(0, gather));
  REQUIRE(world.finished(1, loss));
  CHECK_THAT(world.outcome(1, loss).message(),
             Contains("rank 0 in allgather 'allgather.noname.0', rank 1 in allreduce 'loss'"));
}

TEST_CASE("a named operation from another thread takes back that one is alone") {
  World world(2);
  Gather(world, 0);
  world.Await(0, "allgather.noname.0", Waiter::kAlone);
  world.Advance(5s);
  world.SubmitNow(0, Allreduce("metric"));
  world.Deliver();
  world.SubmitNow(1, Allreduce("loss"));
  world.Await(1, "loss", Waiter::kAlone);
  world.Deliver();
  world.Advance(5s);
  CHECK(world.outcomes(0) == 0);
}

TEST_CASE("ranks that wait for each other in named operations only are left to the stall rules") {
  World world(2);
  for (const int rank : {0, 1}) {
    const std::string name(1, static_cast<char>('a' + rank));
    world.SubmitNow(rank, Allreduce(name));
    world.Await(rank, name, Waiter::kAlone);
  }
  world.Deliver();
  world.Advance(50s);
  CHECK(world.outcomes(0) == 0);
  // Another thread of rank 0 has its first operation.
  world.SubmitNow(0, Allreduce("b"));
  world.Deliver();
  CHECK(world.Batches(1) == "b");
}

// ---- who is concerned

TEST_CASE("who waits for ranks that wait for each other goes on after they have failed") {
  World world(3);
  world.SubmitEverywhere(Registration(1, {0, 2}), true);
  world.FinishBatches();
  world.BlockIn(0, "", In(1, Barrier("barrier.noname.0")));
  const Ticket waits = world.BlockIn(1, "", kSum);
  world.BlockIn(2, "", In(1, kSum));
  world.Deliver();
  world.Advance(5s);
  CHECK(world.outcomes(0) == 1);
  CHECK(world.outcomes(2) == 1);
  REQUIRE_FALSE(world.finished(1, waits));
  for (const int rank : {0, 2}) world.SubmitAt(rank, "", kSum);
  world.Deliver();
  CHECK(world.Batches(1) == "process_set.add.1 | allreduce.noname.0");
}

TEST_CASE("three ranks may wait for each other in a circle") {
  World world(3);
  // Each has submitted what the one before waits for.
  const std::vector<std::string> kinds = {"a", "b", "c"};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    world.SubmitAt(static_cast<int>(rank), "", Allreduce("noname." + kinds[rank]));
    world.BlockIn(static_cast<int>(rank), "", Allreduce("noname." + kinds[(rank + 1) % 3]));
  }
  world.Deliver();
  world.Advance(5s);
  for (int rank = 0; rank < 3; ++rank) CHECK(world.outcomes(rank) == 2);
}

TEST_CASE("a rank that has joined contradicts nobody") {
  World world(3);
  const Ticket join = world.BlockIn(2, "", Join());
  world.BlockIn(0, "", kSum);
  world.Deliver();
  world.Advance(30s);
  CHECK(world.outcomes(0) == 0);
  world.BlockIn(1, "", Barrier("barrier.noname.0"));
  world.Deliver();
  world.Advance(5s);
  CHECK(world.outcomes(0) == 1);
  CHECK(world.outcomes(1) == 1);
  CHECK_FALSE(world.finished(2, join));
  for (const int rank : {0, 1}) world.SubmitAt(rank, "", Join());
  world.Deliver();
  CHECK(world.Batches(2) == "join.noname.0");
  world.FinishBatches();
  for (int rank = 0; rank < 3; ++rank) {
    world.SubmitAt(rank, "", Allreduce("allreduce.noname.1.0"));
  }
  world.Deliver();
  CHECK(world.Batches(2) == "join.noname.0 | allreduce.noname.1.0");
}

TEST_CASE("only the round of the process set ends in which ranks wait for each other") {
  World world(3);
  world.SubmitEverywhere(Registration(1, {0, 2}), true);
  world.FinishBatches();
  world.BlockIn(0, "", In(1, kSum));
  const Ticket other = world.SubmitAt(0, "", Allreduce("allreduce.noname.9"));
  world.Await(0, "allreduce.noname.0", Waiter::kUnnamed, 1);
  world.BlockIn(2, "", In(1, Barrier("barrier.noname.0")));
  world.Deliver();
  world.Advance(5s);
  CHECK(world.outcomes(0) == 1);
  CHECK(world.outcomes(1) == 0);
  CHECK(world.outcomes(2) == 1);
  CHECK_FALSE(world.finished(0, other));
  CHECK(world.RoundOf(0, 1) == 1);
  CHECK(world.RoundOf(0) == 0);
  CHECK(world.RoundOf(1, 1) == 0);
}

TEST_CASE("ranks may wait for each other in operations of different process sets") {
  World world(3);
  world.SubmitEverywhere(Registration(1, {0, 1}), true);
  world.FinishBatches();
  const Ticket a = world.BlockIn(0, "", In(1, kSum));
  for (const int rank : {1, 2}) world.BlockIn(rank, "", kSum);
  world.Deliver();
  world.Advance(5s);
  REQUIRE(world.finished(0, a));
  CHECK_THAT(world.outcome(0, a).message(),
             Contains("rank 0 in allreduce 'allreduce.noname.0' of process set 1 (ranks 0, 1), "
                      "ranks 1, 2 in allreduce 'allreduce.noname.0'."));
  CHECK(world.outcomes(1) == 1);
  CHECK(world.outcomes(2) == 1);
}

TEST_CASE("a change of the process sets may be what the others wait for") {
  World world(2);
  const Ticket add = world.BlockIn(0, "", Registration(1, {0, 1}));
  world.Await(0, "process_set.add.1", Waiter::kUnnamed);
  world.BlockIn(1, "", kSum);
  world.Deliver();
  world.Advance(5s);
  REQUIRE(world.finished(0, add));
  CHECK_THAT(world.outcome(0, add).message(), Contains("ranks wait for each other"));
  CHECK(world.outcomes(1) == 1);
}

TEST_CASE("a plan that is frozen thaws, and then it is seen who waits for whom") {
  Options options;
  options.freeze_after = 2;
  World world(2, options);
  for (int step = 0; step < 4; ++step) {
    world.SubmitEverywhere(Allreduce("w"));
    world.FinishBatches();
  }
  REQUIRE(world.planner(0).plan_counters().freezes == 1);
  REQUIRE(world.planner(0).plan_counters().thaws[1] == 0);
  const Ticket a = BlockInGather(world, 0);
  const Ticket b = world.BlockIn(1, "", kSum);
  world.Deliver();
  world.Advance(5s);
  CHECK(world.finished(0, a));
  CHECK(world.finished(1, b));
  const std::size_t before = world.run(0).size();
  world.SubmitEverywhere(Allreduce("w"));
  CHECK(world.run(0).size() == before + 1);
}

TEST_CASE("it is found without stall checks, and earlier with a short stall warning") {
  Options options;
  options.stall_check = GENERATE(false, true);
  options.stall_warning = 1s;
  World world(2, options);
  const Ticket a = BlockInGather(world, 0);
  world.BlockIn(1, "", kSum);
  world.Advance(1s);
  CHECK(world.finished(0, a) == options.stall_check);
  world.Advance(4s);
  CHECK(world.finished(0, a));
}

TEST_CASE("a departure ends ranks that wait for each other") {
  World world(3);
  const Ticket a = BlockInGather(world, 0);
  world.BlockIn(1, "", kSum);
  world.Deliver();
  world.Leave(2);
  world.Deliver();
  REQUIRE(world.finished(0, a));
  CHECK(world.outcome(0, a).code() == StatusCode::kAborted);
  world.Advance(10s);
  CHECK(world.fatal(0).ok());
}

}  // namespace
}  // namespace hvl::plan
