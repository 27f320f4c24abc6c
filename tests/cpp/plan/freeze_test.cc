// Freezing and thawing, step by step.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "csrc/wire/codec.h"
#include "tests/cpp/plan/world.h"

namespace hvl::plan {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using wire::ThawReason;

Options Freezing(int after = 3) {
  Options options;
  options.freeze_after = after;
  return options;
}

std::uint64_t Thaws(World& world, int rank, ThawReason reason) {
  return world.planner(rank).plan_counters().thaws[static_cast<std::size_t>(reason)];
}

void Step(World& world, const std::vector<std::string>& names) {
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const std::string& name : names) world.Submit(rank, Allreduce(name));
    world.Flush(rank);
  }
  world.Deliver();
  world.FinishBatches();
}

/// A world whose plan of these operations is frozen.
void StepUntilFrozen(World& world, const std::vector<std::string>& names) {
  const std::uint64_t before = world.planner(0).plan_counters().freezes;
  for (int i = 0; i < 50 && world.planner(0).plan_counters().freezes == before; ++i) {
    Step(world, names);
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    REQUIRE(world.planner(rank).plan_counters().freezes == before + 1);
  }
}

TEST_CASE("after some steps that are alike nothing is sent any more") {
  World world(3, Freezing(3));
  for (int step = 0; step < 3; ++step) Step(world, {"a", "b"});
  CHECK(world.planner(2).plan_counters().freezes == 1);
  const std::size_t frames = world.frames();
  for (int step = 0; step < 10; ++step) Step(world, {"a", "b"});
  CHECK(world.frames() == frames);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(world.run(rank).size() == 13);
    CHECK(world.planner(rank).plan_counters().buckets == 10);
    CHECK(world.planner(rank).plan_counters().frames == 0);
  }
}

TEST_CASE("a bucket starts when its last operation is submitted here, whatever the others do") {
  World world(2, Freezing(2));
  StepUntilFrozen(world, {"a", "b"});
  const std::size_t before = world.run(1).size();
  world.SubmitNow(1, Allreduce("b"));
  CHECK(world.run(1).size() == before);
  world.SubmitNow(1, Allreduce("a"));
  REQUIRE(world.run(1).size() == before + 1);
  const Batch& batch = world.run(1).back();
  REQUIRE(batch.gate);
  CHECK(batch.gate->plan == 1);
  CHECK(batch.gate->count == 1);
  CHECK(batch.sequence == world.run(1)[before - 1].sequence + 1);
  CHECK(world.run(0).size() == before);
  world.SubmitNow(0, Allreduce("a"));
  world.SubmitNow(0, Allreduce("b"));
  CHECK(world.run(0).back().gate == batch.gate);
}

TEST_CASE("a rank that is ahead when the plan freezes goes on by it") {
  World world(2, Freezing(2));
  Step(world, {"a"});
  world.Submit(0, Allreduce("a"));
  world.Flush(0);
  world.SubmitNow(1, Allreduce("a"));
  world.DeliverOne(1, 0);  // decided, and frozen; rank 1 has not heard of it
  CHECK(world.planner(0).plan_counters().freezes == 1);
  world.FinishBatches(0);
  world.SubmitNow(0, Allreduce("a"));
  CHECK(world.run(0).size() == 3);
  world.Deliver();
  world.SubmitNow(1, Allreduce("a"));
  CHECK(world.run(1).size() == 3);
  CHECK(world.withdrawals(1) == 0);
}

TEST_CASE(
    "what was announced before a rank heard of the plan is started, and not announced again") {
  // Two operations, so that rank 1 can be ahead with one of them.
  World world(2, Freezing(2));
  Step(world, {"a", "b"});
  world.SubmitNow(0, Allreduce("a"));
  world.SubmitNow(1, Allreduce("a"));
  world.Deliver();
  world.FinishBatches();
  world.SubmitNow(1, Allreduce("a"));  // of the next step
  world.SubmitNow(1, Allreduce("b"));
  world.Deliver();
  world.SubmitNow(0, Allreduce("b"));
  world.Deliver();
  CHECK(world.planner(1).plan_counters().freezes == 1);
  world.FinishBatches();
  const std::size_t frames = world.frames();
  world.SubmitNow(1, Allreduce("b"));
  world.SubmitNow(0, Allreduce("b"));
  world.SubmitNow(0, Allreduce("a"));
  CHECK(world.frames() == frames);
  CHECK(world.run(0).size() == world.run(1).size());
  CHECK(world.run(1).back().gate == world.run(0).back().gate);
}

/// What one rank does while the others have started one more round, and the reason for the thaw.
struct Deviation {
  const char* name;
  ThawReason reason;
  void (*act)(World& world, int rank);
};

const Deviation kDeviations[] = {
    {"another operation", ThawReason::kOperation,
     [](World& world, int rank) { world.SubmitNow(rank, Allreduce("metric")); }},
    {"a barrier", ThawReason::kOperation,
     [](World& world, int rank) { world.SubmitNow(rank, Barrier("barrier")); }},
    {"an allgather", ThawReason::kOperation,
     [](World& world, int rank) { world.SubmitNow(rank, Allgather("rows"), {3}); }},
    {"a process set", ThawReason::kOperation,
     [](World& world, int rank) { world.SubmitNow(rank, Registration(1, {0, 1})); }},
    {"another shape", ThawReason::kSignature,
     [](World& world, int rank) { world.SubmitNow(rank, Allreduce("a", {9})); }},
    {"another kind", ThawReason::kSignature,
     [](World& world, int rank) { world.SubmitNow(rank, Broadcast("a")); }},
};

TEST_CASE("whatever is not in the plan thaws it, and what was begun waits") {
  for (const Deviation& deviation : kDeviations) {
    for (const int strayer : {0, 2}) {
      INFO(deviation.name << " on rank " << strayer);
      World world(3, Freezing(2));
      StepUntilFrozen(world, {"a", "b"});
      const std::size_t before = world.run(0).size();
      // The others start a round; they wait at its gate.
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == strayer) continue;
        world.Submit(rank, Allreduce("a"));
        world.Submit(rank, Allreduce("b"));
        world.Flush(rank);
        CHECK(world.run(rank).size() == before + 1);
      }
      deviation.act(world, strayer);
      world.Deliver();
      for (int rank = 0; rank < 3; ++rank) {
        CHECK(world.fatal(rank).ok());
        CHECK(Thaws(world, rank, deviation.reason) == 1);
        CHECK(world.run(rank).size() == before);
        CHECK(world.withdrawals(rank) == (rank == strayer ? 0 : 1));
      }
    }
  }
}

TEST_CASE("a rank may join while a plan is frozen; the others go on with its zeros") {
  World world(3, Freezing(2));
  StepUntilFrozen(world, {"a", "b"});
  const std::size_t before = world.run(0).size();
  for (const int rank : {0, 1}) {
    world.Submit(rank, Allreduce("a"));
    world.Submit(rank, Allreduce("b"));
    world.Flush(rank);
  }
  world.SubmitNow(2, Join());
  world.Deliver();
  CHECK(Thaws(world, 0, ThawReason::kOperation) == 1);
  for (int rank = 0; rank < 3; ++rank) CHECK(world.run(rank).size() == before + 1);
  CHECK(world.Batches(2) == "a b | a b | 4*0 4*0");
  CHECK(world.Batches(0) == "a b | a b | a b");
}

TEST_CASE("after a thaw the round that was begun goes on, once on every rank") {
  World world(3, Freezing(2));
  StepUntilFrozen(world, {"a", "b"});
  for (int step = 0; step < 4; ++step) Step(world, {"a", "b"});
  const std::size_t before = world.run(0).size();
  for (const int rank : {0, 1}) {
    world.Submit(rank, Allreduce("a"));
    world.Submit(rank, Allreduce("b"));
    world.Flush(rank);
  }
  world.Submit(2, Allreduce("metric"));
  world.Submit(2, Allreduce("b"));
  world.Flush(2);
  world.Deliver();
  for (const int rank : {0, 1}) world.SubmitNow(rank, Allreduce("metric"));
  world.SubmitNow(2, Allreduce("a"));
  world.Deliver();
  world.FinishBatches();
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(world.run(rank).back().sequence == world.run(0).back().sequence);
    std::size_t tensors = 0;
    for (std::size_t i = before; i < world.run(rank).size(); ++i) {
      CHECK_FALSE(world.run(rank)[i].gate);
      CHECK(world.run(rank)[i].sequence == i + 1);
      tensors += test::SingleTensors(world.run(rank)[i]).size();
    }
    CHECK(tensors == 3);
  }
  // And freezes again.
  StepUntilFrozen(world, {"a", "b"});
  CHECK(world.planner(1).plan_counters().freezes == 2);
}

TEST_CASE("buckets that all ranks have started run although the plan thaws") {
  Options options = Freezing(2);
  options.bucket_bytes = 16;  // one tensor
  World world(2, options);
  StepUntilFrozen(world, {"a", "b", "c"});
  const std::size_t before = world.run(0).size();
  for (const char* name : {"a", "b", "c"}) world.Submit(0, Allreduce(name));
  world.Flush(0);
  world.SubmitNow(1, Allreduce("a"));
  CHECK(world.run(0).size() == before + 3);
  CHECK(world.run(1).size() == before + 1);
  world.SubmitNow(1, Allreduce("x"));
  world.Deliver();
  for (const int rank : {0, 1}) {
    REQUIRE(world.run(rank).size() == before + 1);
    CHECK(world.run(rank).back().gate->count == 1);
  }
  // The others are announced, and wait for rank 1.
  world.SubmitNow(1, Allreduce("c"));
  world.SubmitNow(1, Allreduce("b"));
  world.SubmitNow(0, Allreduce("x"));
  world.Deliver();
  world.FinishBatches();
  CHECK(world.Batches(0) == "a b c | a b c | a | x c b");
  CHECK(world.Batches(0) == world.Batches(1));
}

TEST_CASE("an operation that comes again before the round is through thaws the plan") {
  Options options = Freezing(2);
  options.bucket_bytes = 16;
  World world(2, options);
  StepUntilFrozen(world, {"a", "b"});
  for (const int rank : {0, 1}) world.SubmitNow(rank, Allreduce("a"));
  world.FinishBatches();
  for (const int rank : {0, 1}) world.SubmitNow(rank, Allreduce("a"));  // without b
  world.Deliver();
  CHECK(Thaws(world, 0, ThawReason::kMissing) == 1);
  CHECK(world.run(0).size() == world.run(1).size());
  CHECK_FALSE(world.run(0).back().gate);
  CHECK(world.Batches(0) == world.Batches(1));
}

TEST_CASE("a thread that waits for part of a bucket gets it") {
  World world(2, Freezing(2));
  StepUntilFrozen(world, {"a", "b"});
  const std::size_t before = world.run(0).size();
  for (const int rank : {0, 1}) {
    world.SubmitNow(rank, Allreduce("a"));
    world.planner(rank).Awaited(kWorldSet, "a", Waiter::kAny, world.now());
  }
  CHECK(world.run(0).size() == before);
  world.Advance(milliseconds(2));
  CHECK(world.run(0).size() == before + 1);
  CHECK(world.run(1).size() == before + 1);
  CHECK(Thaws(world, 1, ThawReason::kAwaited) == 1);
}

TEST_CASE("waiting for what has started thaws nothing, nor does what starts in time") {
  World world(2, Freezing(2));
  StepUntilFrozen(world, {"a", "b"});
  world.SubmitNow(0, Allreduce("a"));
  world.planner(0).Awaited(kWorldSet, "a", Waiter::kAny, world.now());
  world.planner(0).Awaited(kWorldSet, "nothing", Waiter::kAny, world.now());
  world.SubmitNow(0, Allreduce("b"));
  world.planner(0).Awaited(kWorldSet, "b", Waiter::kAny, world.now());
  world.Advance(milliseconds(100));
  CHECK(Thaws(world, 0, ThawReason::kAwaited) == 0);
  CHECK(world.run(0).back().gate);
}

TEST_CASE("a wait that began before the plan counts from its freeze") {
  World world(2, Freezing(2));
  Step(world, {"a", "b"});
  world.SubmitNow(0, Allreduce("a"));
  world.SubmitNow(1, Allreduce("a"));
  world.Deliver();
  world.FinishBatches();
  world.SubmitNow(1, Allreduce("a"));
  world.planner(1).Awaited(kWorldSet, "a", Waiter::kAny, world.now());
  for (const int rank : {0, 1}) world.SubmitNow(rank, Allreduce("b"));
  world.Deliver();
  world.FinishBatches();
  CHECK(world.planner(1).plan_counters().freezes == 1);
  world.Advance(milliseconds(2));
  CHECK(Thaws(world, 1, ThawReason::kAwaited) == 1);
}

TEST_CASE("a rank that is missing for long is named by the negotiation") {
  Options options = Freezing(2);
  options.stall_warning = std::chrono::seconds(8);
  World world(3, options);
  StepUntilFrozen(world, {"a"});
  for (const int rank : {0, 1}) world.SubmitNow(rank, Allreduce("a"));
  world.Advance(std::chrono::seconds(3));
  CHECK(Thaws(world, 0, ThawReason::kStalled) == 1);
  world.Advance(std::chrono::seconds(9));
  REQUIRE_FALSE(world.notices(0).empty());
  CHECK_THAT(world.notices(0).back().text, Contains("'a'") && Contains("missing on rank 2"));
  world.SubmitNow(2, Allreduce("a"));
  world.Deliver();
  CHECK(world.run(0).size() == world.run(2).size());
}

TEST_CASE("a rank that does not answer while the plan thaws is named") {
  Options options = Freezing(2);
  options.stall_warning = std::chrono::seconds(2);
  options.stall_shutdown = std::chrono::seconds(10);
  World world(3, options);
  StepUntilFrozen(world, {"a"});
  world.SubmitNow(1, Allreduce("x"));
  world.DeliverOne(1, 0);  // the coordinator says stop, and nobody hears it
  Effects effects;
  world.planner(0).Tick(world.now() + std::chrono::seconds(3), effects);
  REQUIRE(effects.notices.size() == 1);
  CHECK_THAT(effects.notices[0].text, Contains("rank 2 has not answered for 3.0 s"));
  world.planner(0).Tick(world.now() + std::chrono::seconds(10), effects);
  CHECK(effects.fatal.code() == StatusCode::kTimeout);
  CHECK(effects.fatal.culprit_rank() == 2);
}

TEST_CASE("a departure thaws first; what the rank had started and not finished ends the session") {
  SECTION("nothing of it is to run") {
    World world(3, Freezing(2));
    StepUntilFrozen(world, {"a"});
    const Ticket waiting = world.SubmitNow(0, Allreduce("a"));
    world.Leave(2);
    world.Deliver();
    REQUIRE(world.finished(0, waiting));
    CHECK_THAT(world.outcome(0, waiting).message(), Contains("rank 2 has left"));
    CHECK(world.fatal(0).ok());
    CHECK(world.fatal(1).ok());
    CHECK(Thaws(world, 1, ThawReason::kLeft) == 1);
    CHECK(world.withdrawals(0) == 1);
  }
  SECTION("all have started it, rank 2 has not run it") {
    World world(3, Freezing(2));
    StepUntilFrozen(world, {"a"});
    for (int rank = 0; rank < 3; ++rank) world.SubmitNow(rank, Allreduce("a"));
    world.Leave(2);
    world.Deliver();
    CHECK(world.fatal(0).code() == StatusCode::kAborted);
    CHECK(world.fatal(1).culprit_rank() == 2);
  }
}

TEST_CASE("the coordinator's goodbye ends a plan, too") {
  SECTION("it has begun nothing more") {
    World world(3, Freezing(2));
    StepUntilFrozen(world, {"a"});
    Step(world, {"a"});
    const Ticket waiting = world.SubmitNow(1, Allreduce("a"));
    world.Leave(0);
    world.Deliver();
    REQUIRE(world.finished(1, waiting));
    CHECK_THAT(world.outcome(1, waiting).message(), Contains("rank 0 has left"));
    CHECK(world.withdrawals(1) == 1);
    CHECK(world.fatal(1).ok());
    CHECK(world.fatal(2).ok());
  }
  SECTION("it has begun what rank 1 has begun") {
    World world(3, Freezing(2));
    StepUntilFrozen(world, {"a"});
    for (const int rank : {0, 1}) world.SubmitNow(rank, Allreduce("a"));
    world.Leave(0);
    world.Deliver();
    CHECK(world.fatal(1).code() == StatusCode::kAborted);
    CHECK(world.withdrawals(1) == 0);
    CHECK(world.fatal(2).ok());
  }
}

TEST_CASE("a program that strays again and again is not frozen for ever") {
  World world(2, Freezing(3));
  for (int i = 0; i < 200; ++i) {
    Step(world, {"a", "b"});
    if (i % 7 == 6) Step(world, {"metric"});
  }
  CHECK(world.planner(0).plan_counters().freezes <= 2);
  CHECK(world.Batches(0) == world.Batches(1));
}

TEST_CASE("unnamed operations, process sets and sizes that differ keep a program from freezing") {
  const auto freezes = [](auto step) {
    World world(2, Freezing(2));
    for (int i = 0; i < 10; ++i) {
      Step(world, {"a"});
      step(world, i);
      world.FinishBatches();
    }
    return world.planner(1).plan_counters().freezes;
  };
  CHECK(freezes([](World&, int) {}) == 1);
  CHECK(freezes([](World& world, int i) {
          world.SubmitEverywhere(Allreduce(Format("allreduce.noname.{}", i)), true);
        }) == 0);
  CHECK(freezes([](World& world, int) {
          for (const int rank : {0, 1}) world.SubmitNow(rank, Allgather("rows"), {rank + 1});
          world.Deliver();
        }) == 0);
  CHECK(freezes([](World& world, int) { world.SubmitEverywhere(Barrier("barrier")); }) == 0);
  CHECK(freezes([](World& world, int i) { world.SubmitEverywhere(Allreduce("b", {i + 1})); }) == 0);
}

TEST_CASE("a tuner that never gets a plan says why, once") {
  Options options = Freezing(2);
  options.tune = true;
  World world(2, options);
  const auto step = [&world] {
    Step(world, {"a"});
    for (const int rank : {0, 1}) world.SubmitNow(rank, Allgather("rows"), {rank + 1});
    world.Deliver();
    world.FinishBatches();
  };
  for (int i = 0; i < 400; ++i) step();
  CHECK(world.notices(0).empty());  // a start may be long
  for (int i = 0; i < 800; ++i) step();
  REQUIRE(world.notices(0).size() == 1);
  CHECK(world.notices(0)[0].level == LogLevel::kWarning);
  CHECK_THAT(world.notices(0)[0].text, Contains("HVL_AUTOTUNE") && Contains("allgather 'rows'"));
  CHECK(world.notices(1).empty());
}

TEST_CASE("a tuner that has got a plan does not complain of what ends it") {
  Options options = Freezing(2);
  options.tune = true;
  World world(2, options);
  StepUntilFrozen(world, {"a"});
  for (int i = 0; i < 1200; ++i) {
    for (const int rank : {0, 1}) world.SubmitNow(rank, Allgather("rows"), {rank + 1});
    world.Deliver();
    world.FinishBatches();
  }
  for (const Notice& notice : world.notices(0)) CHECK(notice.level == LogLevel::kDebug);
}

TEST_CASE("groups are started and withdrawn whole") {
  World world(2, Freezing(2));
  const wire::Signature group =
      Group("group", {{DType::kFloat32, 0, {4}}, {DType::kInt64, 0, {4}}});
  for (int i = 0; i < 2; ++i) {
    world.SubmitEverywhere(group);
    world.FinishBatches();
  }
  REQUIRE(world.planner(1).plan_counters().freezes == 1);
  const std::size_t before = world.run(0).size();
  world.SubmitNow(0, group);
  REQUIRE(world.run(0).size() == before + 2);
  CHECK(world.run(0)[before].gate);
  CHECK_FALSE(world.run(0)[before + 1].gate);  // follows
  world.SubmitNow(1, Allreduce("x"));
  world.Deliver();
  CHECK(world.run(0).size() == before);
  world.SubmitNow(1, group);
  world.Deliver();
  world.FinishBatches();
  CHECK(world.run(0).size() == before + 2);
  CHECK(world.Batches(0) == world.Batches(1));
}

TEST_CASE("a thaw that withdraws what has run here makes no sense") {
  World world(2, Freezing(2));
  StepUntilFrozen(world, {"a"});
  for (const int rank : {0, 1}) world.SubmitNow(rank, Allreduce("a"));
  world.FinishBatches();
  wire::Decide decide;
  decide.generation = World::kGeneration;
  decide.number = 3;
  decide.stop = 1;
  world.Receive(0, 1, wire::Encode(decide));
  REQUIRE(world.fatal(1).ok());
  decide.number = 4;
  decide.stop.reset();
  decide.thaw = wire::Thaw{1, 0, 0, ThawReason::kOperation};
  world.Receive(0, 1, wire::Encode(decide));
  CHECK_THAT(world.fatal(1).message(), Contains("are withdrawn, this rank has run"));
  CHECK(world.withdrawals(1) == 0);
}

TEST_CASE("a rank that has not started what has run is out of its mind") {
  World world(2, Freezing(2));
  StepUntilFrozen(world, {"a"});
  for (const int rank : {0, 1}) world.SubmitNow(rank, Allreduce("a"));
  world.FinishBatches();
  SECTION("it says how many it has started") {
    const wire::Stopped stopped{World::kGeneration, 1, 0, ThawReason::kOperation};
    world.Receive(1, 0, wire::Encode(stopped));
  }
  SECTION("it leaves without a word of the plan") {
    wire::Bye bye;
    bye.generation = World::kGeneration;
    world.Receive(1, 0, wire::Encode(bye));
  }
  CHECK_THAT(world.fatal(0).message(), Contains("of a plan of which rank 0 has run more"));
  CHECK(world.fatal(0).culprit_rank() == 1);
  CHECK(world.withdrawals(0) == 0);
}

TEST_CASE("messages about plans that make no sense end the session") {
  const auto hears = [](const wire::Bytes& frame, int to, bool frozen) {
    World world(2, Freezing(2));
    if (frozen) StepUntilFrozen(world, {"a"});
    world.Receive(1 - to, to, frame);
    return world.fatal(to);
  };
  const auto stopped = [](std::uint32_t plan, std::uint64_t started, ThawReason reason) {
    return wire::Encode(wire::Stopped{World::kGeneration, plan, started, reason});
  };
  CHECK_THAT(hears(stopped(1, 0, ThawReason::kOperation), 0, false).message(),
             Contains("which is not frozen"));
  CHECK_THAT(hears(stopped(2, 0, ThawReason::kOperation), 0, true).message(),
             Contains("which is not frozen"));
  CHECK_THAT(hears(stopped(1, 0, ThawReason::kStopped), 0, true).message(), Contains("unasked"));
  const Status spread = hears(stopped(1, 2, ThawReason::kOperation), 0, true);
  CHECK_THAT(spread.message(), Contains("buckets of a plan of 1"));
  CHECK(spread.culprit_rank() == 1);
  CHECK_THAT(hears(stopped(1, 0, ThawReason::kOperation), 1, true).message(),
             Contains("a message for the coordinator"));

  const auto decides = [&](const std::function<void(wire::Decide&)>& change, bool frozen = true) {
    wire::Decide decide;
    decide.generation = World::kGeneration;
    decide.number = frozen ? 3 : 1;
    change(decide);
    return hears(wire::Encode(decide), 1, frozen).message();
  };
  wire::Member member;
  member.id = 0;
  const wire::Bucket bucket{{{{member}, {}}}};
  CHECK_THAT(decides([&](wire::Decide& decide) { decide.freeze = wire::Freeze{2, {bucket}, 0}; }),
             Contains("freezes after plan 1"));
  CHECK_THAT(
      decides([&](wire::Decide& decide) { decide.freeze = wire::Freeze{1, {bucket}, 0}; }, false),
      Contains("id 0 of 0"));
  CHECK_THAT(decides([](wire::Decide& decide) { decide.stop = 2; }), Contains("plan 2 stops"));
  CHECK_THAT(decides([](wire::Decide& decide) { decide.thaw = wire::Thaw{1, 0, 0, {}}; }),
             Contains("has not stopped"));
  CHECK_THAT(decides([](wire::Decide& decide) { decide.starts_epoch = true; }),
             Contains("while a plan is frozen"));
  CHECK_THAT(decides([](wire::Decide& decide) {
               decide.stop = 1;
               decide.thaw = wire::Thaw{1, 7, 0, {}};
             }),
             Contains("has not stopped"));
}

}  // namespace
}  // namespace hvl::plan
