// The negotiation as users of Planner see it: what runs, in which order, on every rank.
#include "csrc/plan/planner.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "csrc/base/str.h"
#include "tests/cpp/plan/world.h"

namespace hvl::plan {
namespace {

Options Threshold(std::size_t bytes) {
  Options options;
  options.fusion_threshold_bytes = bytes;
  return options;
}

TEST_CASE("a world of one runs what it submits without a message") {
  World world(1);
  world.SubmitNow(0, Allreduce("x"));
  CHECK(world.Batches(0) == "x");
  CHECK(world.frames() == 0);
}

TEST_CASE("an operation runs when the last rank has submitted it, not before") {
  World world(3);
  world.SubmitNow(0, Allreduce("x"));
  world.SubmitNow(2, Allreduce("x"));
  world.Deliver();
  CHECK(world.run(0).empty());
  world.SubmitNow(1, Allreduce("x"));
  world.Deliver();
  for (int rank = 0; rank < 3; ++rank) {
    INFO("rank " << rank);
    REQUIRE(world.run(rank).size() == 1);
    CHECK(world.Batches(rank) == "x");
    CHECK(world.run(rank)[0].sequence == 1);
    CHECK(world.run(rank)[0].spec.kind == OpKind::kAllreduce);
    CHECK(world.run(rank)[0].dtype == DType::kFloat32);
  }
}

TEST_CASE("ranks may submit in any order; all run in one order") {
  World world(2, Threshold(0));
  for (const char* name : {"a", "b", "c"}) world.Submit(0, Allreduce(name));
  for (const char* name : {"c", "a", "b"}) world.Submit(1, Allreduce(name));
  world.Flush(0);
  world.Flush(1);
  world.Deliver();
  CHECK(world.run(0).size() == 3);
  CHECK(world.Batches(0) == world.Batches(1));
}

TEST_CASE("a known name costs bits") {
  World world(2);
  const std::string name = "a.rather.long.name.of.a.layer.weight";
  world.SubmitEverywhere(Allreduce(name));
  world.FinishBatches();
  const std::size_t before = world.frame_bytes();
  world.SubmitEverywhere(Allreduce(name));
  CHECK(world.run(1).size() == 2);
  CHECK(world.frame_bytes() - before < 30);
}

TEST_CASE("the thousandth burst of a thousand known tensors fits into two tiny frames") {
  World world(2);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const std::size_t frames = world.frames();
    const std::size_t bytes = world.frame_bytes();
    for (int rank = 0; rank < 2; ++rank) {
      for (int i = 0; i < 1000; ++i) world.Submit(rank, Allreduce(Format("t{}", i)));
      world.Flush(rank);
    }
    world.Deliver();
    world.FinishBatches();
    CHECK(world.run(1).back().entries.size() == 1000);
    CHECK(world.frames() - frames == 2);
    if (repeat > 0) CHECK(world.frame_bytes() - bytes < 40);
  }
}

TEST_CASE("a known name may come back with another shape, if on all ranks") {
  World world(2);
  world.SubmitEverywhere(Allreduce("x", {4}));
  world.FinishBatches();
  world.SubmitEverywhere(Allreduce("x", {5}));
  world.FinishBatches();
  world.SubmitEverywhere(Allreduce("x", {5}));
  CHECK(world.Batches(1) == "x | x | x");
}

TEST_CASE("allgather tells every rank the first dimension of all") {
  World world(3);
  world.SubmitNow(0, Allgather("g", {2}), {5});
  world.SubmitNow(1, Allgather("g", {2}), {0});
  world.SubmitNow(2, Allgather("g", {2}), {7});
  world.Deliver();
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(world.run(rank).size() == 1);
    CHECK(world.run(rank)[0].entries[0].first_dims == std::vector<std::int64_t>{5, 0, 7});
  }
  world.FinishBatches();
  // Now by id, and of two operations in one batch.
  world.SubmitEverywhere(Allreduce("other"));
  world.FinishBatches();
  for (int rank = 0; rank < 3; ++rank) {
    world.Submit(rank, Allgather("g", {2}), {rank});
    world.Submit(rank, Allgather("h"), {10 + rank});
    world.Flush(rank);
  }
  world.Deliver();
  REQUIRE(world.run(2).back().entries.size() == 2);
  CHECK(world.run(2).back().entries[0].first_dims == std::vector<std::int64_t>{0, 1, 2});
  CHECK(world.run(2).back().entries[1].first_dims == std::vector<std::int64_t>{10, 11, 12});
}

TEST_CASE("a barrier runs alone and has one entry") {
  World world(2);
  for (int rank = 0; rank < 2; ++rank) {
    world.Submit(rank, Allreduce("a"));
    world.Submit(rank, Barrier("barrier"));
    world.Submit(rank, Allreduce("b"));
    world.Flush(rank);
  }
  world.Deliver();
  CHECK(world.Batches(1) == "a b | barrier");
  CHECK(world.run(1)[1].spec.kind == OpKind::kBarrier);
  CHECK(world.run(1)[1].entries.size() == 1);
}

TEST_CASE("while the data plane is busy, ready tensors gather; then they run together") {
  World world(2);
  world.SubmitEverywhere(Allreduce("first"));
  world.SubmitEverywhere(Allreduce("a"));
  world.SubmitEverywhere(Allreduce("b"));
  CHECK(world.Batches(1) == "first");
  CHECK(world.planner(0).gathering());
  world.FinishBatches(0);
  world.Deliver();
  CHECK(world.Batches(0) == "first | a b");
  CHECK(world.Batches(1) == "first | a b");
  CHECK_FALSE(world.planner(0).gathering());
}

TEST_CASE("while the data plane is busy, a full batch does not wait") {
  World world(2, Threshold(32));
  world.SubmitEverywhere(Allreduce("first"));
  world.SubmitEverywhere(Allreduce("a"));
  CHECK(world.Batches(1) == "first");
  world.SubmitEverywhere(Allreduce("b"));
  CHECK(world.Batches(1) == "first | a b");
}

TEST_CASE("a full batch takes along what became ready before it, so that nothing starves") {
  World world(2, Threshold(32));
  world.SubmitEverywhere(Allreduce("first"));
  world.SubmitEverywhere(Broadcast("lonely"));
  world.SubmitEverywhere(Allreduce("big", {100}));
  CHECK(world.Batches(1) == "first | lonely | big");
}

TEST_CASE("a group is agreed on as one and announced whole") {
  World world(2, Threshold(0));
  const wire::Signature group =
      Group("g", {{DType::kFloat32, 0, {1}}, {DType::kFloat64, 0, {1}}, {DType::kFloat32, 0, {1}}});
  world.SubmitEverywhere(group);
  CHECK(world.Batches(1) == "g | g[1] | g[2]");
  world.FinishBatches();
  world.SubmitEverywhere(group);
  CHECK(world.Batches(1) == "g | g[1] | g[2] | g | g[1] | g[2]");
}

TEST_CASE("a group that does not fit into one batch still goes out in one go") {
  World world(2, Threshold(64));
  world.SubmitEverywhere(Allreduce("first"));
  // Its second tensor fills a batch; the first and third would otherwise gather on.
  world.SubmitEverywhere(Group(
      "g", {{DType::kFloat32, 0, {1}}, {DType::kFloat32, 0, {16}}, {DType::kFloat64, 0, {1}}}));
  CHECK(world.Batches(1) == "first | g | g[1] | g[2]");
}

TEST_CASE("names that will not come again leave nothing behind") {
  World world(2);
  for (int i = 0; i < 20000; ++i) {
    world.SubmitEverywhere(Allreduce(Format("allreduce.noname.{}", i)), true);
    world.FinishBatches();
  }
  CHECK(world.run(1).size() == 20000);
  CHECK(world.planner(0).remembered_names() == 0);
  CHECK(world.planner(1).remembered_names() == 0);
}

TEST_CASE("when the ids run out a new epoch begins and nothing is lost") {
  Options options;
  options.intern_capacity = 3;
  World world(2, options);
  std::string expected;
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (int i = 0; i < 10; ++i) {
      const std::string name = Format("t{}", i);
      world.SubmitEverywhere(Allreduce(name));
      world.FinishBatches();
      expected += (expected.empty() ? "" : " | ") + name;
    }
  }
  CHECK(world.Batches(0) == expected);
  CHECK(world.Batches(1) == expected);
  CHECK(world.fatal(1).ok());
}

TEST_CASE("ids in flight keep their meaning while a new epoch begins") {
  Options options;
  options.intern_capacity = 2;
  World world(2, options);
  for (const char* name : {"a", "b"}) {
    world.SubmitEverywhere(Allreduce(name));
    world.FinishBatches();
  }
  // Rank 1 announces "b" by its old id; the frame is still on its way when the epoch ends.
  world.Submit(1, Allreduce("c"));
  world.Flush(1);
  world.SubmitNow(1, Allreduce("b"));
  world.SubmitNow(0, Allreduce("c"));
  world.DeliverOne(1, 0);  // "c" is agreed on: no id is left, a new epoch begins
  world.FinishBatches(0);
  world.SubmitNow(0, Allreduce("b"));  // rank 0 is in the new epoch already
  world.Deliver();
  CHECK(world.Batches(0) == "a | b | c | b");
  CHECK(world.Batches(1) == "a | b | c | b");
  CHECK(world.fatal(0).ok());
}

TEST_CASE("a signature agrees with an id of an epoch that has ended meanwhile") {
  Options options;
  options.intern_capacity = 1;
  World world(2, options);
  world.SubmitEverywhere(Allreduce("a"));
  world.FinishBatches();
  world.SubmitNow(1, Allreduce("a"));  // by its id
  world.SubmitEverywhere(Allreduce("b"));
  world.FinishBatches();  // no id is left: a new epoch
  world.SubmitEverywhere(Allreduce("c"));
  world.FinishBatches();               // both ranks have reached it: the old ids are gone
  world.SubmitNow(0, Allreduce("a"));  // by its signature
  world.Deliver();
  CHECK(world.Batches(1) == "a | b | c | a");
  CHECK(world.outcomes(0) == 0);
}

TEST_CASE("frames of another generation are dropped") {
  World world(2);
  auto stale = Planner::Create(1, 2, World::kGeneration - 1, {});
  Effects effects;
  stale->Submit({1, Allreduce("x"), {}, false}, world.now(), effects);
  stale->Flush(world.now(), effects);
  REQUIRE(effects.send.size() == 1);
  world.SubmitNow(0, Allreduce("x"));
  world.Receive(1, 0, effects.send[0].frame);
  CHECK(world.run(0).empty());
  CHECK(world.fatal(0).ok());
}

TEST_CASE("nonsense from a peer is fatal and names the peer") {
  World world(3);
  SECTION("bytes that are no frame") { world.Receive(2, 0, {std::byte{9}, std::byte{9}}); }
  SECTION("a decision that is not the coordinator's") {
    world.SubmitEverywhere(Allreduce("x"));
    world.Receive(2, 0, world.last_frame());
  }
  CHECK(world.fatal(0).code() == StatusCode::kInternal);
  CHECK(world.fatal(0).culprit_rank() == 2);
  CHECK(world.fatal(0).message().find("rank 2") != std::string::npos);
}

TEST_CASE("what cannot be sent is refused at once and harms nothing") {
  World world(2);
  const Ticket ticket = world.SubmitNow(0, Allreduce(std::string(5000, 'n')));
  REQUIRE(world.finished(0, ticket));
  CHECK(world.outcome(0, ticket).code() == StatusCode::kInvalidArgument);
  world.SubmitEverywhere(Allreduce("x"));
  CHECK(world.Batches(1) == "x");
}

TEST_CASE("readiness is noted only while tracing, on the coordinator") {
  World world(2);
  world.SubmitEverywhere(Allreduce("x"));
  CHECK(world.ready().empty());
  world.planner(0).SetTracing(true);
  world.FinishBatches();
  world.SubmitEverywhere(Broadcast("y"));
  REQUIRE(world.ready().size() == 2);
  CHECK(world.ready()[1].name == "y");
  CHECK(world.ready()[1].rank == 1);
  CHECK(world.ready()[1].kind == OpKind::kBroadcast);
}

}  // namespace
}  // namespace hvl::plan
