// What goes wrong, and how it is told: mismatches, stalls, ranks that leave, die or talk nonsense.
#include <catch2/catch.hpp>
#include <string>

#include "csrc/plan/mismatch.h"
#include "csrc/plan/planner.h"
#include "csrc/plan/verdict.h"
#include "tests/cpp/plan/world.h"

namespace hvl::plan {
namespace {

using Catch::Matchers::Contains;
using namespace std::chrono_literals;

wire::Signature WithOp(wire::Signature signature, ReduceOp op) {
  signature.reduce_op = op;
  return signature;
}

Options Stall(Duration warning, Duration shutdown = {}) {
  Options options;
  options.stall_warning = warning;
  options.stall_shutdown = shutdown;
  return options;
}

// ---- mismatch

struct Pair {
  wire::Signature left;
  wire::Signature right;
  std::string text;  // what the message must contain
};

std::vector<Pair> Mismatches() {
  wire::Signature scaled = Allreduce("x");
  scaled.prescale = 0.5;
  wire::Signature unscaled = Allreduce("x");
  unscaled.postscale = 2.0;
  wire::Signature layout = Allreduce("x");
  layout.tensors[0].layout = 0x1342;
  wire::Signature transposed = Allreduce("x");
  transposed.tensors[0].layout = 0x21;
  const wire::TensorSignature four{DType::kFloat32, 0, {4}};
  const wire::TensorSignature five{DType::kFloat32, 0, {5}};
  return {
      {Allreduce("x", {4}), Allreduce("x", {5}), "shape: [4] on ranks 0, 2, [5] on rank 1"},
      {Allreduce("x", {2, 3}), Allreduce("x", {3, 2}), "shape: [2, 3] on ranks 0, 2, [3, 2]"},
      {Allreduce("x"), Allreduce("x", {4}, DType::kFloat64),
       "element type: float32 on ranks 0, 2, float64 on rank 1"},
      {Allreduce("x"), Broadcast("x"), "operation: allreduce on ranks 0, 2, broadcast on rank 1"},
      {Allreduce("x"), Barrier("x"), "operation: allreduce on ranks 0, 2, barrier on rank 1"},
      {WithOp(Allreduce("x"), ReduceOp::kSum), WithOp(Allreduce("x"), ReduceOp::kMax),
       "reduction: sum on ranks 0, 2, max on rank 1"},
      {Broadcast("x", 0), Broadcast("x", 1), "root rank: 0 on ranks 0, 2, 1 on rank 1"},
      {Allreduce("x"), scaled, "prescale factor: 1 on ranks 0, 2, 0.5 on rank 1"},
      {Allreduce("x"), unscaled, "postscale factor: 1 on ranks 0, 2, 2 on rank 1"},
      {Allreduce("x"), layout, "memory layout: row-major on ranks 0, 2, channels-last on rank 1"},
      {Allreduce("x"), transposed,
       "memory layout: row-major on ranks 0, 2, dimensions (1, 0), slowest first on rank 1"},
      {Group("x", {four}), Group("x", {four, four}),
       "number of tensors: 1 on ranks 0, 2, 2 on rank 1"},
      {Group("x", {four, four}), Group("x", {four, five}),
       "(its tensor 2 of 2) differs between ranks: shape: [4] on ranks 0, 2, [5] on rank 1"},
  };
}

TEST_CASE(
    "a mismatch fails on every rank with both values and who has which; then the name works") {
  for (const Pair& pair : Mismatches()) {
    INFO(pair.text);
    World world(3);
    if (GENERATE(false, true)) {  // the name may be known already
      world.SubmitEverywhere(pair.left);
      world.FinishBatches();
    }
    const std::size_t batches = world.run(0).size();
    std::vector<Ticket> tickets;
    for (int rank = 0; rank < 3; ++rank) {
      tickets.push_back(world.SubmitNow(rank, rank == 1 ? pair.right : pair.left));
    }
    world.Deliver();
    for (int rank = 0; rank < 3; ++rank) {
      REQUIRE(world.finished(rank, tickets[static_cast<std::size_t>(rank)]));
      const Status& status = world.outcome(rank, tickets[static_cast<std::size_t>(rank)]);
      CHECK(status.code() == StatusCode::kMismatch);
      CHECK(status.culprit_rank() == 1);
      CHECK_THAT(status.message(), Contains("tensor 'x'") && Contains(pair.text));
      CHECK_THAT(status.message(), Contains("Cure: "));
    }
    world.SubmitEverywhere(pair.right);
    CHECK(world.run(2).size() == batches + 1);
    CHECK(world.outcomes(2) == 1);
  }
}

TEST_CASE("allgather compares trailing dimensions and types, not the first dimension") {
  World world(2);
  const Ticket a = world.SubmitNow(0, Allgather("g", {3}), {2});
  const Ticket b = world.SubmitNow(1, Allgather("g", {4}), {2});
  world.Deliver();
  REQUIRE(world.finished(0, a));
  CHECK_THAT(world.outcome(0, a).message(),
             Contains("shape: [any, 3] on rank 0, [any, 4] on rank 1"));
  CHECK(world.outcome(1, b) == world.outcome(0, a));
  CHECK(world.outcome(0, a).culprit_rank() == Status::kNoRank);  // one against one
}

TEST_CASE("everything that differs is told at once") {
  World world(2);
  const Ticket a = world.SubmitNow(0, Allreduce("x", {4}, DType::kFloat32));
  world.SubmitNow(1, Allreduce("x", {5}, DType::kInt32));
  world.Deliver();
  CHECK_THAT(world.outcome(0, a).message(),
             Contains("element type: float32 on rank 0, int32 on rank 1; shape: [4] on rank 0"));
}

TEST_CASE("a mismatch waits a second for the silent ranks, then fails, and they hear it later") {
  World world(4);
  const Ticket a = world.SubmitNow(0, Allreduce("x", {4}));
  const Ticket b = world.SubmitNow(1, Allreduce("x", {5}));
  world.Deliver();
  CHECK_FALSE(world.finished(0, a));
  REQUIRE(world.planner(0).next_deadline());
  CHECK(*world.planner(0).next_deadline() == world.now() + 1s);
  world.Advance(1s);
  REQUIRE(world.finished(0, a));
  CHECK_THAT(world.outcome(0, a).message(), Contains("(ranks 2, 3 not heard yet)"));
  REQUIRE(world.finished(1, b));
  // The late ones get the same error at once, without a message.
  const std::size_t frames = world.frames();
  const Ticket c = world.Submit(2, Allreduce("x", {4}));
  REQUIRE(world.finished(2, c));
  CHECK(world.outcome(2, c) == world.outcome(0, a));
  world.Flush(2);
  CHECK(world.frames() == frames);
  // The next operation of that name begins anew, and waits for rank 3, which still owes two.
  for (int rank = 0; rank < 3; ++rank) world.SubmitNow(rank, Allreduce("x"));
  world.Deliver();
  CHECK(world.run(0).empty());
  const Ticket d = world.SubmitNow(3, Allreduce("x"));
  CHECK(world.outcome(3, d) == world.outcome(0, a));
  world.SubmitNow(3, Allreduce("x"));
  world.Deliver();
  CHECK(world.Batches(3) == "x");
}

TEST_CASE(
    "an announcement that crosses the failure of its instance is not taken for the next one") {
  World world(3);
  world.SubmitNow(0, Allreduce("x", {4}));
  world.SubmitNow(1, Allreduce("x", {5}));
  world.Deliver();
  const Ticket late = world.SubmitNow(2, Allreduce("x", {4}));  // on its way ...
  world.Advance(1s);                                            // ... delivered after the failure
  REQUIRE(world.finished(2, late));
  CHECK(world.outcome(2, late).code() == StatusCode::kMismatch);
  for (int rank = 0; rank < 2; ++rank) world.SubmitNow(rank, Allreduce("x"));
  world.Deliver();
  CHECK(world.run(0).empty());
  world.SubmitNow(2, Allreduce("x"));
  world.Deliver();
  CHECK(world.Batches(2) == "x");
  CHECK(world.fatal(0).ok());
}

TEST_CASE(
    "a submission that is not yet announced when its instance fails is not announced at all") {
  World world(3);
  world.SubmitNow(0, Allreduce("x", {4}));
  world.SubmitNow(1, Allreduce("x", {5}));
  world.Deliver();
  const Ticket late = world.Submit(2, Allreduce("x", {4}));  // no Flush
  world.Advance(1s);
  REQUIRE(world.finished(2, late));
  CHECK(world.planner(0).remembered_names() == 0);  // it has been told that none will come
  world.Flush(2);
  world.Deliver();
  world.SubmitEverywhere(Allreduce("x"));
  CHECK(world.Batches(2) == "x");
}

TEST_CASE("failures leave no state once every rank has heard of them and submitted") {
  World world(3);
  for (int i = 0; i < 100; ++i) {
    world.SubmitNow(0, Allreduce("x", {4}));
    world.SubmitNow(1, Allreduce("x", {5}));
    world.Deliver();
    world.Advance(1s);
  }
  CHECK(world.planner(0).remembered_names() == 0);  // acknowledged by rank 2
  CHECK(world.planner(2).remembered_names() == 1);
  for (int i = 0; i < 100; ++i) {
    const Ticket ticket = world.Submit(2, Allreduce("x"));
    REQUIRE(world.finished(2, ticket));
  }
  CHECK(world.planner(2).remembered_names() == 0);
  world.SubmitEverywhere(Allreduce("x"));
  CHECK(world.Batches(0) == "x");
}

TEST_CASE("hearing of a failure does not announce what is not flushed yet") {
  World world(3);
  world.SubmitNow(0, Allreduce("x", {4}));
  world.SubmitNow(1, Allreduce("x", {5}));
  world.Deliver();
  world.Submit(2, Allreduce("a"));
  world.Advance(1s);  // rank 2 acknowledges the failure of "x"
  world.Submit(2, Allreduce("b"));
  const std::size_t frames = world.frames();
  world.Flush(2);
  CHECK(world.frames() == frames + 1);
  for (int rank = 0; rank < 2; ++rank) {
    world.Submit(rank, Allreduce("a"));
    world.Submit(rank, Allreduce("b"));
    world.Flush(rank);
  }
  world.Deliver();
  CHECK(world.Batches(2) == "a b");
}

// ---- one name, several kinds

TEST_CASE("ranks that wait for each other in different kinds of one name fail and see both") {
  World world(3);
  const Ticket a = world.SubmitNow(0, Allreduce("allreduce.x"));
  world.SubmitNow(2, Allreduce("allreduce.x"));
  world.Deliver();
  world.Advance(4s);
  const Ticket b = world.SubmitNow(1, Broadcast("broadcast.x"));
  world.Deliver();
  world.Advance(4s);
  CHECK_FALSE(world.finished(0, a));
  world.Advance(6s);
  REQUIRE(world.finished(0, a));
  REQUIRE(world.finished(1, b));
  const Status& error = world.outcome(0, a);
  CHECK(error.code() == StatusCode::kMismatch);
  CHECK(error.culprit_rank() == 1);
  CHECK_THAT(error.message(), Contains("tensor 'x' differs between ranks: operation: allreduce "
                                       "('allreduce.x') on ranks 0, 2, broadcast "
                                       "('broadcast.x') on rank 1") &&
                                  Contains("Cure: "));
  CHECK(world.outcome(1, b) == error);
  world.SubmitEverywhere(Allreduce("y"));
  CHECK(world.Batches(1) == "y");
}

TEST_CASE("one name may be in use for several kinds at once, in any order, and in several sets") {
  World world(3);
  world.SubmitEverywhere(Registration(1, {0, 1}));
  SECTION("a rank has both and is only late") {
    world.SubmitOn({0, 1}, Allreduce("allreduce.x"));
    world.SubmitOn({1, 2}, Broadcast("broadcast.x"));
    world.Advance(40s);
    world.SubmitOn({2}, Allreduce("allreduce.x"));
    world.SubmitOn({0}, Broadcast("broadcast.x"));
  }
  SECTION("each has submitted the other one in time") {
    world.SubmitOn({0, 1}, Allreduce("allreduce.x"));
    world.SubmitOn({2}, Broadcast("broadcast.x"));
    world.Advance(4s);
    world.SubmitOn({2}, Allreduce("allreduce.x"));
    world.SubmitOn({0, 1}, Broadcast("broadcast.x"));
  }
  SECTION("the sets differ") {
    world.SubmitOn({0}, In(1, Allreduce("allreduce.x")));
    world.SubmitOn({1}, Broadcast("broadcast.x"));
    world.Advance(40s);
    world.SubmitOn({1}, In(1, Allreduce("allreduce.x")));
    world.SubmitOn({0, 2}, Broadcast("broadcast.x"));
  }
  SECTION("the names differ") {
    world.SubmitOn({0}, Allreduce("allreduce.x"));
    world.SubmitOn({1}, Broadcast("broadcast.y"));
    world.Advance(40s);
    world.SubmitOn({1, 2}, Allreduce("allreduce.x"));
    world.SubmitOn({0, 2}, Broadcast("broadcast.y"));
  }
  world.FinishBatches();
  world.Advance(1s);
  CHECK(world.outcomes(0) + world.outcomes(1) + world.outcomes(2) == 0);
  CHECK(world.run(0).size() == 3);
}

TEST_CASE("kinds are compared by what users call an operation") {
  CHECK(UserName("allreduce.x", OpKind::kAllreduce) == "x");
  CHECK(UserName("grouped_allgather.x.y", OpKind::kAllgather) == "x.y");
  CHECK(UserName("allreduce.x", OpKind::kBroadcast) == "allreduce.x");
  CHECK(UserName("allreducex", OpKind::kAllreduce) == "allreducex");
  CHECK(UserName("x", OpKind::kAllreduce) == "x");
}

// ---- stalls

TEST_CASE("a stall is reported once, with names, ranks and age, then at doubling ages") {
  World world(3, Stall(60s));
  world.SubmitNow(0, Allreduce("a"));
  world.SubmitNow(2, Allreduce("a"));
  world.SubmitNow(1, Allreduce("b"));
  world.Deliver();
  world.Advance(59s);
  CHECK(world.notices(0).empty());
  world.Advance(1s);
  REQUIRE(world.notices(0).size() == 1);
  CHECK(world.notices(0)[0].level == LogLevel::kWarning);
  CHECK_THAT(world.notices(0)[0].text,
             Contains("2 operations") &&
                 Contains("'a' for 60.0 s: missing on rank 1; ready on ranks 0, 2") &&
                 Contains("'b' for 60.0 s: missing on ranks 0, 2; ready on rank 1"));
  for (int second = 61; second <= 479; ++second) world.Advance(1s);
  CHECK(world.notices(0).size() == 3);  // after 120 s and 240 s
  world.Advance(1s);
  CHECK(world.notices(0).size() == 4);
  CHECK(world.notices(1).empty());
  // It still works when the rank comes at last.
  world.SubmitNow(1, Allreduce("a"));
  world.Deliver();
  CHECK(world.Batches(1) == "a");
}

TEST_CASE("tensors that stall one after the other make one notice") {
  World world(2, Stall(60s));
  for (int i = 0; i < 50; ++i) {
    world.SubmitNow(0, Allreduce(Format("t{}", i)));
    world.Advance(10ms);
  }
  for (int second = 0; second < 90; ++second) world.Advance(1s);
  REQUIRE(world.notices(0).size() == 1);
  CHECK_THAT(world.notices(0)[0].text, Contains("50 operations") && Contains("and 40 more"));
}

TEST_CASE("with a limit, a stalled operation fails and names the missing ranks") {
  World world(3, Stall(2s, 5s));
  const Ticket a = world.SubmitNow(0, Allreduce("a"));
  const Ticket b = world.SubmitNow(1, Allreduce("b"));
  world.Deliver();
  world.Advance(2s);
  CHECK(world.notices(0).size() == 1);
  world.Advance(3s);
  REQUIRE(world.finished(0, a));
  CHECK(world.outcome(0, a).code() == StatusCode::kTimeout);
  CHECK(world.outcome(0, a).culprit_rank() == 1);
  CHECK_THAT(world.outcome(0, a).message(),
             Contains("tensor 'a' has waited 5.0 s for ranks 1, 2") &&
                 Contains("HVL_STALL_SHUTDOWN_TIME_SECONDS=5") && Contains("rank 0 submitted it"));
  REQUIRE(world.finished(1, b));
  const Ticket late = world.Submit(2, Allreduce("a"));
  REQUIRE(world.finished(2, late));
  CHECK(world.outcome(2, late) == world.outcome(0, a));
  CHECK_FALSE(world.planner(0).next_deadline());
}

TEST_CASE("without stall checks, and while nothing waits, there is no deadline") {
  Options options = Stall(2s, 5s);
  World checked(2, options);
  CHECK_FALSE(checked.planner(0).next_deadline());
  checked.SubmitEverywhere(Allreduce("x"));
  CHECK_FALSE(checked.planner(0).next_deadline());
  options.stall_check = false;
  World unchecked(2, options);
  unchecked.SubmitNow(0, Allreduce("x"));
  CHECK_FALSE(unchecked.planner(0).next_deadline());
}

// ---- leaving

TEST_CASE("all ranks leaving with nothing pending is silent") {
  World world(3);
  world.SubmitEverywhere(Allreduce("x"));
  world.FinishBatches();
  for (int rank : {1, 0, 2}) {
    world.Leave(rank);
    world.Deliver();
    for (int other = 0; other < 3; ++other) {
      if (other != rank) world.Lose(other, rank);
    }
  }
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(world.fatal(rank).ok());
    CHECK(world.outcomes(rank) == 0);
    CHECK(world.notices(rank).empty());
  }
}

TEST_CASE("when a rank has left, what waits for it and what comes later fails with its name") {
  const int leaver = GENERATE(0, 1);
  World world(3);
  world.SubmitEverywhere(Allreduce("x"));
  world.FinishBatches();
  const Ticket pending = world.SubmitNow(2, Allreduce("y"));
  world.Leave(leaver);
  world.Deliver();
  REQUIRE(world.finished(2, pending));
  const Ticket later = world.SubmitNow(2, Allreduce("x"));
  world.Deliver();
  REQUIRE(world.finished(2, later));
  for (const Ticket ticket : {pending, later}) {
    const Status& status = world.outcome(2, ticket);
    CHECK(status.code() == StatusCode::kAborted);
    CHECK(status.culprit_rank() == leaver);
    CHECK_THAT(status.message(), Contains(Format("rank {} has left (shutdown)", leaver)) &&
                                     Contains("the same number of steps"));
  }
  CHECK_THAT(world.outcome(2, pending).message(), Contains("'y' was waiting"));
  CHECK(world.fatal(2).ok());
}

TEST_CASE("who is out of reach because a leader has left is no loss once that was decided") {
  const int leaver = GENERATE(0, 1);
  World world(4);
  world.SubmitEverywhere(Allreduce("x"));
  world.FinishBatches();
  CHECK_FALSE(world.over(2));
  world.Leave(leaver);
  world.Deliver();
  for (int rank = 0; rank < 4; ++rank) {
    if (rank != leaver) CHECK(world.over(rank));
  }
  world.Lose(2, leaver);
  world.LoseThrough(2, 3, leaver);
  CHECK(world.fatal(2).ok());
  // It may live all the same: what the data plane says of it is taken as it is.
  world.DataPlaneFailed(2, Status(StatusCode::kUnavailable, "rank 3 was killed", 3));
  CHECK(world.fatal(2) == Status(StatusCode::kUnavailable, "rank 3 was killed", 3));
}

TEST_CASE("who is out of reach is lost where the departure was not heard, or another one is gone") {
  World world(5);
  world.SubmitEverywhere(Allreduce("x"));
  world.FinishBatches();
  world.Leave(1);
  REQUIRE(world.DeliverOne(1, 2));  // but rank 0 does not hear of it
  world.Lose(2, 1);
  CHECK(world.fatal(2).ok());
  world.LoseThrough(2, 3, 1);
  CHECK_THAT(world.fatal(2).message(), Contains("rank 1 has left (shutdown) while other ranks"));
  world.Deliver();
  REQUIRE(world.over(4));
  world.LoseThrough(4, 3, 2);  // of which nobody knows that it leaves
  world.Advance(Verdict::kGrace + 1ms);
  CHECK(world.fatal(4).culprit_rank() == 2);
}

TEST_CASE("a rank that can only not be reached is not blamed for what befell the way to it") {
  // Rank 0's host falls silent. Rank 1 notices first, and its sockets to rank 2 end.
  World world(4);
  world.DataPlaneFailed(2, Status(StatusCode::kUnavailable, "rank 1 closed its socket", 1));
  world.Advance(250ms);
  CHECK(world.fatal(2).ok());
  SECTION("the news of the way first") {
    world.Lose(2, 0);
    world.LoseThrough(2, 1, 0);
  }
  SECTION("the news of the way last") {
    world.LoseThrough(2, 1, 0);
    world.Lose(2, 0);
  }
  CHECK(world.fatal(2).culprit_rank() == 0);
}

TEST_CASE("leaving before an agreed operation has run is fatal for the others") {
  const int leaver = GENERATE(0, 2);
  World world(3);
  world.SubmitEverywhere(Allreduce("x"));
  world.FinishBatches(1);  // the leaver has not finished its part
  world.Leave(leaver);
  world.Deliver();
  CHECK(world.fatal(1).code() == StatusCode::kAborted);
  CHECK(world.fatal(1).culprit_rank() == leaver);
}

TEST_CASE("leaving after finishing an operation lets slower ranks finish it as well") {
  World world(2);
  world.SubmitEverywhere(Allreduce("x"));
  world.FinishBatches(0);
  world.Leave(0);
  world.Deliver();
  world.Lose(1, 0);
  CHECK(world.fatal(1).ok());
  world.FinishBatches(1);
  CHECK(world.outcomes(1) == 0);
}

// ---- dying

TEST_CASE("a link that ends without a goodbye is fatal and tells what waited") {
  World world(3);
  for (const char* name : {"a", "b", "c", "d"}) world.SubmitNow(1, Allreduce(name));
  world.Lose(1, 2);
  CHECK(world.fatal(1).code() == StatusCode::kUnavailable);
  CHECK(world.fatal(1).culprit_rank() == 2);
  CHECK_THAT(world.fatal(1).message(),
             Contains("rank 2 closed its link; waiting for it: 'a', 'b', 'c' and 1 more"));
}

TEST_CASE("every survivor reports the first cause, whichever link it sees end first") {
  // Rank 3 dies; rank 1 notices and leaves because of that.
  World world(4);
  world.SubmitNow(0, Allreduce("x"));
  world.Deliver();
  world.Lose(1, 3);
  CHECK(world.fatal(1).culprit_rank() == 3);
  world.Leave(1, world.fatal(1));
  SECTION("the goodbye of rank 1 first") {
    world.Deliver();
    CHECK(world.fatal(0).ok());  // rank 3 may still have something to say
    for (int rank : {0, 2}) world.Lose(rank, 3);
  }
  SECTION("the end of rank 3 first") {
    for (int rank : {0, 2}) world.Lose(rank, 3);
    world.Deliver();
  }
  SECTION("rank 3's own link does not end in time") {
    world.Deliver();
    world.Advance(Verdict::kGrace);
  }
  for (int rank : {0, 2}) {
    CHECK(world.fatal(rank).code() == StatusCode::kUnavailable);
    CHECK(world.fatal(rank).culprit_rank() == 3);
  }
}

TEST_CASE("a rank that left because of an error forwards its cause") {
  World world(3);
  world.Leave(1, Status(StatusCode::kInternal, "the data plane lost its memory"));
  world.Deliver();
  CHECK(world.fatal(0).code() == StatusCode::kInternal);
  CHECK(world.fatal(0).culprit_rank() == 1);
  CHECK_THAT(world.fatal(0).message(), Contains("lost its memory"));
}

TEST_CASE("blame is followed to the end of the chain") {
  // Rank 0's data plane saw rank 1 go; rank 1 had left because of rank 2, which had left because of
  // its own bug.
  World world(4);
  world.DataPlaneFailed(0, Status(StatusCode::kUnavailable, "rank 1 closed the socket", 1));
  CHECK(world.fatal(0).ok());
  world.Leave(1, Status(StatusCode::kUnavailable, "rank 2 closed the socket", 2));
  world.Deliver();
  CHECK(world.fatal(0).ok());
  world.Leave(2, Status(StatusCode::kInternal, "bug", 2));
  world.Deliver();
  CHECK(world.fatal(0) == Status(StatusCode::kInternal, "bug", 2));
  CHECK(world.fatal(3) == Status(StatusCode::kInternal, "bug", 2));
}

TEST_CASE("a rank that leaves forwards what it knows, not what it was asked to say") {
  // Rank 0 has heard that it was rank 2; its data plane only knows that rank 1 is gone.
  World world(4);
  world.Leave(1, Status(StatusCode::kUnavailable, "rank 2 closed its link", 2));
  world.DeliverOne(1, 0);
  world.Leave(0, Status(StatusCode::kUnavailable, "rank 1 closed its socket", 1));
  world.DeliverOne(0, 3);
  world.Lose(3, 2);
  CHECK(world.fatal(3) == Status(StatusCode::kUnavailable, "rank 2 closed its link", 2));
}

TEST_CASE("two ranks that blame each other do not confuse a third one for long") {
  World world(3);
  world.Leave(0, Status(StatusCode::kUnavailable, "rank 1 is gone", 1));
  world.Leave(1, Status(StatusCode::kUnavailable, "rank 0 is gone", 0));
  world.Deliver();
  CHECK(world.fatal(2).code() == StatusCode::kUnavailable);
}

TEST_CASE("a data plane that fails because a rank has left says so") {
  World world(2);
  world.SubmitEverywhere(Allreduce("x"));
  world.FinishBatches(0);
  world.Leave(0);
  world.DataPlaneFailed(1, Status(StatusCode::kUnavailable, "rank 0 closed the socket", 0));
  CHECK(world.fatal(1).ok());
  world.Deliver();
  CHECK(world.fatal(1).code() == StatusCode::kAborted);
  CHECK(world.fatal(1).culprit_rank() == 0);
}

TEST_CASE("a data plane that blames nobody is believed at once") {
  World world(2);
  world.DataPlaneFailed(1, Status(StatusCode::kInternal, "out of memory"));
  CHECK(world.fatal(1).code() == StatusCode::kInternal);
  CHECK(world.fatal(1).culprit_rank() == 1);
}

TEST_CASE("after the end nothing is sent and everything submitted fails with the cause") {
  World world(2);
  world.Lose(0, 1);
  const std::size_t frames = world.frames();
  const Ticket ticket = world.SubmitNow(0, Allreduce("x"));
  REQUIRE(world.finished(0, ticket));
  CHECK(world.outcome(0, ticket) == world.fatal(0));
  world.Advance(1000s);
  CHECK(world.frames() == frames);
  CHECK_FALSE(world.planner(0).next_deadline());
}

}  // namespace
}  // namespace hvl::plan
