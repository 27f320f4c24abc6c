// Process sets: who knows them from when, who runs what, and what is refused.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/plan/coordinator.h"
#include "csrc/plan/process_sets.h"
#include "tests/cpp/plan/world.h"

namespace hvl::plan {
namespace {

using Catch::Matchers::Contains;
using namespace std::chrono_literals;

void FinishAll(World& world) {
  world.FinishBatches();
  world.FinishBatches();
}

TEST_CASE("a process set is registered by all ranks, in a batch of its own that all get") {
  World world(3);
  for (int rank = 0; rank < 3; ++rank) {
    world.Submit(rank, Allreduce("a"));
    world.Submit(rank, Registration(1, {0, 2}));
    world.Submit(rank, Allreduce("b"));
    world.Flush(rank);
  }
  world.Deliver();
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(world.Batches(rank) == "a b | process_set.add.1");
    const Batch& batch = world.run(rank).back();
    CHECK(batch.spec.kind == OpKind::kProcessSet);
    CHECK(batch.spec.process_set == 1);
    CHECK(batch.spec.ranks == std::vector<std::int32_t>{0, 2});
  }
}

TEST_CASE("an operation of a set needs its members only, and only they run it") {
  World world(4);
  world.SubmitEverywhere(Registration(1, {1, 3}));
  FinishAll(world);
  world.SubmitNow(3, In(1, Allreduce("x")));
  world.Deliver();
  CHECK(world.Batches(3) == "process_set.add.1");
  world.SubmitNow(1, In(1, Allreduce("x")));
  world.Deliver();
  for (const int rank : {1, 3}) {
    CHECK(world.Batches(rank) == "process_set.add.1 | x");
    CHECK(world.run(rank)[1].spec.process_set == 1);
    CHECK(world.run(rank)[1].sequence == 2);
  }
  for (const int rank : {0, 2}) CHECK(world.Batches(rank) == "process_set.add.1");
  // Again, now by its id, which the others count as well.
  world.FinishBatches();
  world.SubmitOn({1, 3}, In(1, Allreduce("x")));
  world.FinishBatches();
  world.SubmitEverywhere(Allreduce("y"));
  CHECK(world.Batches(1) == "process_set.add.1 | x | x | y");
  CHECK(world.Batches(0) == "process_set.add.1 | y");
  CHECK(world.run(0)[1].sequence == 4);
  for (int rank = 0; rank < 4; ++rank) CHECK(world.fatal(rank).ok());
}

TEST_CASE("one name may be in flight in the world and in two sets at once") {
  World world(3);
  world.SubmitEverywhere(Registration(1, {0, 1}));
  world.SubmitEverywhere(Registration(2, {1, 2}));
  FinishAll(world);
  world.SubmitNow(1, Allreduce("x"));
  world.SubmitNow(1, In(1, Allreduce("x", {7})));
  world.SubmitNow(1, In(2, Broadcast("x", 2)));
  world.SubmitNow(2, In(2, Broadcast("x", 2)));
  world.SubmitNow(0, In(1, Allreduce("x", {7})));
  FinishAll(world);
  const auto sets = [&](int rank) {
    std::string text;
    for (const Batch& batch : world.run(rank)) {
      if (batch.spec.kind != OpKind::kProcessSet) text += Format("{} ", batch.spec.process_set);
    }
    return text;
  };
  CHECK(sets(0) == "1 ");
  CHECK(sets(1).size() == 4);
  CHECK(sets(2) == "2 ");
  world.SubmitOn({0, 2}, Allreduce("x"));
  FinishAll(world);
  CHECK(world.run(1).size() == 5);
  CHECK(world.outcomes(1) == 0);
}

TEST_CASE("operations of different sets are not fused") {
  World world(2);
  world.SubmitEverywhere(Registration(1, {0, 1}));
  FinishAll(world);
  for (int rank = 0; rank < 2; ++rank) {
    world.Submit(rank, Allreduce("a"));
    world.Submit(rank, In(1, Allreduce("b")));
    world.Submit(rank, Allreduce("c"));
    world.Submit(rank, In(1, Allreduce("d")));
    world.Flush(rank);
  }
  world.Deliver();
  CHECK(world.Batches(1) == "process_set.add.1 | a c | b d");
}

TEST_CASE("what rank 0 does not run does not make its ready tensors gather") {
  World world(3);
  world.SubmitEverywhere(Registration(1, {1, 2}));
  FinishAll(world);
  world.SubmitOn({1, 2}, In(1, Allreduce("x")));
  CHECK_FALSE(world.planner(0).gathering());
  world.SubmitEverywhere(Allreduce("y"));
  CHECK(world.Batches(0) == "process_set.add.1 | y");
  CHECK(world.Batches(2) == "process_set.add.1 | x | y");
}

TEST_CASE("allgather and alltoall tell the members the sizes of the members") {
  World world(4);
  world.SubmitEverywhere(Registration(1, {1, 3}));
  FinishAll(world);
  for (int repeat = 0; repeat < 2; ++repeat) {  // by name, by id
    for (const int rank : {1, 3}) {
      world.Submit(rank, In(1, Allgather("g")), {rank});
      world.Submit(rank, In(1, Alltoall("t")),
                   {std::int64_t{10} * rank, std::int64_t{10} * rank + 1});
      world.Flush(rank);
    }
    world.Deliver();
    world.FinishBatches();
    for (const int rank : {1, 3}) {
      const std::vector<Batch>& run = world.run(rank);
      CHECK(run[run.size() - 2].entries[0].first_dims == std::vector<std::int64_t>{1, 3});
      CHECK(run.back().entries[0].first_dims == std::vector<std::int64_t>{10, 11, 30, 31});
    }
  }
}

TEST_CASE("alltoalls of several tensors share a batch and keep their matrices apart") {
  World world(2);
  for (int rank = 0; rank < 2; ++rank) {
    wire::Signature group = Alltoall("g");
    group.tensors.push_back({DType::kInt8, 0, {2}});
    world.Submit(rank, group, {rank, 1, 2, 3});
    world.Submit(rank, Alltoall("t"), {4, 5 + rank});
    world.Flush(rank);
  }
  world.Deliver();
  REQUIRE(world.Batches(1) == "g g[1] t");
  const std::vector<BatchEntry> entries = test::SingleTensors(world.run(1)[0]);
  CHECK(entries[0].first_dims == std::vector<std::int64_t>{0, 1, 1, 1});
  CHECK(entries[1].first_dims == std::vector<std::int64_t>{2, 3, 2, 3});
  CHECK(entries[2].first_dims == std::vector<std::int64_t>{4, 5, 4, 6});
}

TEST_CASE("ranks that register different lists get a mismatch that shows both") {
  World world(3);
  const Ticket a = world.SubmitNow(0, Registration(1, {0, 1}));
  world.SubmitNow(1, Registration(1, {0, 1}));
  world.SubmitNow(2, Registration(1, {1, 2}));
  world.Deliver();
  REQUIRE(world.finished(0, a));
  CHECK(world.outcome(0, a).code() == StatusCode::kMismatch);
  CHECK_THAT(world.outcome(0, a).message(),
             Contains("operation 'process_set.add.1' differs between ranks: list of ranks: [0, 1] "
                      "on ranks 0, 1, [1, 2] on rank 2") &&
                 Contains("in the same order"));
  world.SubmitEverywhere(Registration(1, {0, 1}));
  CHECK(world.Batches(2) == "process_set.add.1");
}

TEST_CASE("a mismatch in a set fails on its members and names the set") {
  World world(4);
  world.SubmitEverywhere(Registration(2, {0, 1, 3}));
  FinishAll(world);
  world.SubmitNow(0, In(2, Allreduce("x", {4})));
  const Ticket b = world.SubmitNow(1, In(2, Allreduce("x", {5})));
  world.Deliver();
  world.Advance(1s);
  REQUIRE(world.finished(1, b));
  CHECK_THAT(world.outcome(1, b).message(),
             Contains("tensor 'x' of process set 2 (ranks 0, 1, 3) differs") &&
                 Contains("(rank 3 not heard yet)"));
  // Rank 3 owes it; rank 2 does not, and the world's "x" is another operation.
  const Ticket world_x = world.SubmitNow(2, Allreduce("x"));
  CHECK_FALSE(world.finished(2, world_x));
  const Ticket late = world.Submit(3, In(2, Allreduce("x")));
  REQUIRE(world.finished(3, late));
  CHECK(world.outcome(3, late) == world.outcome(1, b));
}

TEST_CASE("a stall in a set names the members that are missing, and the set") {
  Options options;
  options.stall_warning = 1s;
  options.stall_shutdown = 3s;
  World world(4, options);
  world.SubmitEverywhere(Registration(1, {0, 2, 3}));
  FinishAll(world);
  const Ticket ticket = world.SubmitAt(2, "train.py:12", In(1, Allreduce("x")), false);
  world.Deliver();
  world.Advance(1s);
  REQUIRE(world.notices(0).size() == 1);
  CHECK_THAT(
      world.notices(0)[0].text,
      Contains("'x' of process set 1 (ranks 0, 2, 3) for 1.0 s: missing on ranks 0, 3; ready "
               "on rank 2 (at train.py:12 on rank 2)"));
  world.Advance(2s);
  REQUIRE(world.finished(2, ticket));
  CHECK_THAT(world.outcome(2, ticket).message(),
             Contains("of process set 1 (ranks 0, 2, 3) has waited 3.0 s for ranks 0, 3") &&
                 Contains("rank 2 submitted it (at train.py:12 on rank 2)"));
}

TEST_CASE("a rank cannot submit to a set that it is not in, or that does not exist") {
  World world(3);
  world.SubmitEverywhere(Registration(1, {0, 1}));
  FinishAll(world);
  const auto refused = [&world](int rank, const wire::Signature& signature) {
    const Ticket ticket = world.SubmitNow(rank, signature);
    REQUIRE(world.finished(rank, ticket));
    CHECK(world.outcome(rank, ticket).code() == StatusCode::kInvalidArgument);
    return world.outcome(rank, ticket).message();
  };
  CHECK_THAT(refused(2, In(1, Allreduce("x"))),
             Contains("allreduce 'x': rank 2 is not a member of process set 1 (ranks 0, 1)"));
  CHECK_THAT(refused(0, In(2, Allreduce("x"))), Contains("process set 2 does not exist"));
  CHECK_THAT(refused(0, Registration(2, {0, 3})), Contains("0 to 2, not 3"));
  world.SubmitOn({0, 1}, In(1, Allreduce("x")));
  CHECK(world.Batches(1) == "process_set.add.1 | x");
}

TEST_CASE("a set is gone after its removal; its id does not come back by accident") {
  World world(2);
  world.SubmitEverywhere(Registration(1, {0, 1}));
  FinishAll(world);
  world.SubmitEverywhere(In(1, Allreduce("x")));
  FinishAll(world);
  world.SubmitEverywhere(Registration(1, {}));
  CHECK(world.Batches(1) == "process_set.add.1 | x | process_set.remove.1");
  CHECK(world.run(1)[2].spec.ranks.empty());
  const Ticket ticket = world.SubmitNow(1, In(1, Allreduce("x")));
  REQUIRE(world.finished(1, ticket));
  CHECK_THAT(world.outcome(1, ticket).message(), Contains("process set 1 does not exist"));
  FinishAll(world);
  SECTION("removed twice") {
    const Ticket again = world.SubmitNow(0, Registration(1, {}));
    world.SubmitNow(1, Registration(1, {}));
    world.Deliver();
    REQUIRE(world.finished(0, again));
    CHECK(world.outcome(0, again).code() == StatusCode::kInvalidArgument);
    CHECK_THAT(world.outcome(0, again).message(), Contains("does not exist"));
  }
  SECTION("added twice") {
    world.SubmitEverywhere(Registration(2, {0}));
    const Ticket again = world.SubmitNow(0, Registration(2, {1}));
    world.SubmitNow(1, Registration(2, {1}));
    world.Deliver();
    REQUIRE(world.finished(0, again));
    CHECK_THAT(world.outcome(0, again).message(), Contains("exists already"));
  }
}

TEST_CASE("a set that still has an operation in flight is not removed") {
  World world(3);
  world.SubmitEverywhere(Registration(1, {0, 2}));
  FinishAll(world);
  world.SubmitNow(2, In(1, Allreduce("x")));
  std::vector<Ticket> tickets;
  for (int rank = 0; rank < 3; ++rank) tickets.push_back(world.Submit(rank, Registration(1, {})));
  // Meanwhile nothing more may be submitted to it.
  const Ticket during = world.Submit(2, In(1, Allreduce("y")));
  REQUIRE(world.finished(2, during));
  CHECK_THAT(world.outcome(2, during).message(), Contains("process set 1 is being removed"));
  for (int rank = 0; rank < 3; ++rank) world.Flush(rank);
  world.Deliver();
  for (int rank = 0; rank < 3; ++rank) {
    const Ticket ticket = tickets[static_cast<std::size_t>(rank)];
    REQUIRE(world.finished(rank, ticket));
    CHECK(world.outcome(rank, ticket).code() == StatusCode::kMismatch);
    CHECK_THAT(world.outcome(rank, ticket).message(),
               Contains("'x' of process set 1 (ranks 0, 2) is still waiting for rank 0"));
  }
  // The set lives on.
  world.SubmitNow(0, In(1, Allreduce("x")));
  world.Deliver();
  CHECK(world.Batches(2) == "process_set.add.1 | x");
  world.SubmitEverywhere(Registration(1, {}));
  CHECK(world.run(1).size() == 2);
}

TEST_CASE("ids given in a set survive epochs on ranks that are not in it") {
  Options options;
  options.intern_capacity = 2;
  World world(3, options);
  world.SubmitEverywhere(Registration(1, {1, 2}));
  FinishAll(world);
  for (int i = 0; i < 20; ++i) {
    const std::string name = Format("t{}", i % 3);
    world.SubmitOn({1, 2}, In(1, Allreduce(name)));
    world.SubmitEverywhere(Allreduce(name));
    FinishAll(world);
  }
  CHECK(world.run(0).size() == 21);
  CHECK(world.run(2).size() == 41);
  for (int rank = 0; rank < 3; ++rank) CHECK(world.fatal(rank).ok());
}

TEST_CASE("a departure ends the session only if an unfinished batch includes the leaver") {
  World world(3);
  world.SubmitEverywhere(Registration(1, {0, 1}));
  FinishAll(world);
  world.SubmitOn({0, 1}, In(1, Allreduce("x")));  // not finished
  const int leaver = GENERATE(1, 2);
  world.Leave(leaver);
  world.Deliver();
  const int other = leaver == 1 ? 2 : 1;
  if (leaver == 1) {
    CHECK(world.fatal(0).code() == StatusCode::kAborted);
    CHECK(world.fatal(0).culprit_rank() == 1);
    return;
  }
  CHECK(world.fatal(0).ok());
  CHECK(world.fatal(other).ok());
  const Ticket later = world.SubmitNow(0, In(1, Allreduce("y")));
  REQUIRE(world.finished(0, later));
  CHECK_THAT(world.outcome(0, later).message(),
             Contains("rank 2 has left (shutdown)") && Contains("'y' of process set 1"));
}

TEST_CASE("announcements for sets that cannot be right are refused") {
  Coordinator coordinator(3, 0, Options{});
  Effects effects;
  const auto announce = [&](int rank, wire::Fresh fresh) {
    wire::Announce message;
    message.fresh = {std::move(fresh)};
    return coordinator.OnAnnounce(rank, std::move(message), {}, effects);
  };
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(announce(rank, {Registration(1, {0, 1}), {}, true}).ok());
  }
  Status status;
  SECTION("a set that does not exist") { status = announce(0, {In(2, Allreduce("x")), {}}); }
  SECTION("a rank that is no member") { status = announce(2, {In(1, Allreduce("x")), {}}); }
  SECTION("a set with ranks beyond the world") {
    status = announce(0, {Registration(2, {0, 3}), {}, true});
  }
  SECTION("too few rows for an alltoall") { status = announce(0, {Alltoall("t"), {1, 2}}); }
  SECTION("rows as of the world in a set") {
    status = announce(0, {In(1, Alltoall("t")), {1, 2, 3}});
  }
  SECTION("an allgather without dimensions") { status = announce(0, {Allgather("g"), {}}); }
  SECTION("an operation after the removal, in one message with it") {
    for (int rank = 1; rank < 3; ++rank) {
      REQUIRE(announce(rank, {Registration(1, {}), {}, true}).ok());
    }
    wire::Announce message;
    message.fresh = {{Registration(1, {}), {}, true}, {In(1, Allreduce("x")), {}}};
    status = coordinator.OnAnnounce(0, std::move(message), {}, effects);
  }
  CHECK(status.code() == StatusCode::kInternal);
  CHECK_FALSE(status.message().empty());
}

TEST_CASE("of two registrations of one set that come at once the second fails") {
  World world(2);
  wire::Signature other = Registration(1, {1});
  other.name = "other";
  std::vector<Ticket> tickets;
  for (int rank = 0; rank < 2; ++rank) {
    world.Submit(rank, Registration(1, {0, 1}));
    tickets.push_back(world.Submit(rank, other));
    world.Flush(rank);
  }
  world.Deliver();
  CHECK(world.Batches(1) == "process_set.add.1");
  REQUIRE(world.finished(1, tickets[1]));
  CHECK_THAT(world.outcome(1, tickets[1]).message(), Contains("by another operation"));
}

}  // namespace
}  // namespace hvl::plan
