// Join: ranks without more data take part with zeros until all have joined.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/plan/coordinator.h"
#include "csrc/plan/participant.h"
#include "tests/cpp/plan/world.h"

namespace hvl::plan {
namespace {

using Catch::Matchers::Contains;
using namespace std::chrono_literals;

TEST_CASE("a rank that has joined takes part in allreduces with zeros") {
  World world(3);
  world.SubmitNow(2, Join());
  world.SubmitOn({0, 1}, Allreduce("new", {2, 3}, DType::kFloat64));
  CHECK(world.Batches(0) == "new");
  CHECK(world.Batches(2) == "6*0");
  CHECK(world.run(2)[0].dtype == DType::kFloat64);
  CHECK(world.run(2)[0].spec.kind == OpKind::kAllreduce);
  world.FinishBatches();
  // By its id, and with company.
  for (const int rank : {0, 1}) {
    world.Submit(rank, Allreduce("new", {2, 3}, DType::kFloat64));
    world.Submit(rank, Allreduce("other", {}, DType::kFloat64));
    world.Flush(rank);
  }
  world.Deliver();
  CHECK(world.Batches(2) == "6*0 | 6*0 1*0");
}

TEST_CASE("when all have joined, every rank hears which one was the last") {
  World world(3);
  const std::vector<int> order = GENERATE(values<std::vector<int>>({{0, 1, 2}, {2, 0, 1}}));
  for (const int rank : order) {
    world.SubmitNow(rank, Join());
    world.Deliver();
  }
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(world.Batches(rank) == "join.noname.0");
    CHECK(world.run(rank)[0].spec.kind == OpKind::kJoin);
    CHECK(world.run(rank)[0].entries[0].first_dims == std::vector<std::int64_t>{order.back()});
  }
  world.FinishBatches();
  world.SubmitEverywhere(Broadcast("after"));
  CHECK(world.Batches(2) == "join.noname.0 | after");
  CHECK(world.planner(0).remembered_names() == 2);  // "after", in both roles
}

TEST_CASE("a join lets go what waited for that rank, and comes after it") {
  World world(3);
  world.SubmitNow(0, Allreduce("x"));
  world.SubmitNow(1, Allreduce("x"));
  world.SubmitNow(0, Join());
  world.SubmitNow(1, Join());
  world.Deliver();
  CHECK(world.run(0).empty());
  world.SubmitNow(2, Join());
  world.Deliver();
  CHECK(world.Batches(0) == "x | join.noname.0");
  CHECK(world.Batches(2) == "4*0 | join.noname.0");
  CHECK(world.run(1)[1].entries[0].first_dims == std::vector<std::int64_t>{2});
}

TEST_CASE("what a rank submitted before it joined is its own") {
  World world(2);
  world.Submit(1, Allreduce("x"));
  world.Submit(1, Join());
  world.Flush(1);
  world.SubmitNow(0, Allreduce("x"));
  world.Deliver();
  CHECK(world.Batches(1) == "x");
  world.FinishBatches();
  world.SubmitNow(0, Allreduce("x"));
  world.Deliver();
  CHECK(world.Batches(1) == "x | 4*0");
}

TEST_CASE("a name that changes its signature while a rank has joined changes it there as well") {
  World world(2);
  world.SubmitEverywhere(Allreduce("x", {4}));
  world.FinishBatches();
  world.SubmitNow(1, Join());
  world.SubmitOn({0}, Allreduce("x", {5}));
  world.FinishBatches();
  world.SubmitOn({0}, Allreduce("x", {5}));  // by its id
  world.FinishBatches();
  CHECK(world.Batches(1) == "x | 5*0 | 5*0");
  world.SubmitOn({0}, Join());
  world.FinishBatches();
  world.SubmitEverywhere(Allreduce("x", {5}));
  CHECK(world.Batches(1) == "x | 5*0 | 5*0 | join.noname.0 | x");
  CHECK(world.fatal(1).ok());
}

TEST_CASE("names without an id bring their signature each time, groups for each part") {
  Options options;
  options.intern_capacity = GENERATE(0, 100);
  options.fusion_threshold_bytes = 0;
  World world(2, options);
  world.SubmitNow(1, Join());
  for (int i = 0; i < 2; ++i) {
    world.SubmitOn({0}, Group("g", {{DType::kFloat32, 0, {1}}, {DType::kFloat64, 0, {2}}}));
    world.FinishBatches();
  }
  CHECK(world.Batches(1) == "1*0 | 2*0 | 1*0 | 2*0");
  CHECK(world.run(1)[3].dtype == DType::kFloat64);
}

TEST_CASE("other operations fail on those that submitted them, the joined rank does not hear") {
  World world(4);
  world.SubmitNow(3, Join());
  const wire::Signature signature =
      GENERATE(values({Broadcast("x"), Barrier("x"), Registration(1, {0, 1})}));
  std::vector<Ticket> tickets;
  for (int rank = 0; rank < 3; ++rank) tickets.push_back(world.SubmitNow(rank, signature));
  world.Deliver();
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(world.finished(rank, tickets[static_cast<std::size_t>(rank)]));
    const Status& status = world.outcome(rank, tickets[static_cast<std::size_t>(rank)]);
    CHECK(status.code() == StatusCode::kMismatch);
    CHECK_THAT(status.message(), Contains(Format("{} '{}' is not supported with Join at this time",
                                                 OpKindName(signature.kind), signature.name)) &&
                                     Contains("rank 3 joined"));
  }
  world.SubmitOn({0, 1, 2}, Join());
  world.FinishBatches();
  CHECK(world.Batches(3) == "join.noname.0");
  CHECK(world.outcomes(3) == 0);
  world.SubmitEverywhere(signature);  // now it works, also on rank 3: nothing is owed
  CHECK(world.outcomes(3) == 0);
  CHECK(world.run(3).size() == 2);
}

TEST_CASE("failures before a join are not owed after it") {
  World world(3);
  world.SubmitNow(0, Allreduce("x", {4}));
  world.SubmitNow(1, Allreduce("x", {5}));
  world.Deliver();
  SECTION("heard of before the join") {
    world.Advance(1s);
    world.SubmitNow(2, Join());
  }
  SECTION("crossing the join") {
    world.SubmitNow(2, Join());
    world.Advance(1s);
  }
  world.Deliver();
  CHECK(world.outcomes(0) == 1);
  world.SubmitOn({0, 1}, Allreduce("x"));
  world.FinishBatches();
  CHECK(world.Batches(2) == "4*0");
  world.SubmitOn({0, 1}, Join());
  world.FinishBatches();
  world.SubmitEverywhere(Allreduce("x"));
  CHECK(world.Batches(2) == "4*0 | join.noname.0 | x");
  CHECK(world.outcomes(2) == 0);
  CHECK(world.fatal(0).ok());
}

TEST_CASE("a mismatch among the others does not wait for a rank that has joined") {
  World world(3);
  world.SubmitNow(2, Join());
  const Ticket a = world.SubmitNow(0, Allreduce("x", {4}));
  world.SubmitNow(1, Allreduce("x", {5}));
  world.Deliver();
  REQUIRE(world.finished(0, a));
  CHECK_THAT(world.outcome(0, a).message(), Contains("[4] on rank 0, [5] on rank 1."));
}

TEST_CASE("a rank that has joined may submit to its process sets, not to the world") {
  World world(3);
  world.SubmitEverywhere(Registration(1, {1, 2}));
  world.FinishBatches();
  world.SubmitNow(2, Join());
  const Ticket refused = world.SubmitNow(2, Allreduce("x"));
  REQUIRE(world.finished(2, refused));
  CHECK(world.outcome(2, refused).code() == StatusCode::kInvalidArgument);
  CHECK_THAT(world.outcome(2, refused).message(), Contains("rank 2 has joined"));
  world.SubmitNow(1, In(1, Broadcast("y", 1)));
  world.Deliver();
  CHECK(world.run(1).size() == 1);  // it does not count as announced there
  world.SubmitNow(2, In(1, Broadcast("y", 1)));
  world.Deliver();
  CHECK(world.Batches(2) == "process_set.add.1 | y");
}

TEST_CASE("a joined rank is not missing in a stall; a join stalls only when nothing moves") {
  Options options;
  options.stall_warning = 2s;
  options.stall_shutdown = 10s;
  World world(3, options);
  const Ticket join = world.SubmitNow(2, Join());
  world.Deliver();
  for (int i = 0; i < 30; ++i) {
    world.Advance(1s);
    world.SubmitOn({0, 1}, Allreduce("x"));
    world.FinishBatches();
  }
  CHECK(world.notices(0).empty());
  world.SubmitNow(0, Allreduce("y"));
  world.Deliver();
  world.Advance(2s);
  REQUIRE(world.notices(0).size() == 1);
  CHECK_THAT(world.notices(0)[0].text,
             Contains("'y' for 2.0 s: missing on rank 1; ready on rank 0") &&
                 Contains("'join.noname.0' for 2.0 s: missing on ranks 0, 1; ready on rank 2"));
  world.Advance(8s);
  REQUIRE(world.finished(2, join));
  CHECK(world.outcome(2, join).code() == StatusCode::kTimeout);
  // It counts as any other rank again.
  world.SubmitOn({0, 1}, Allreduce("z"));
  CHECK(world.run(2).size() == 30);
  world.SubmitOn({2}, Allreduce("z"));
  CHECK(world.run(2).size() == 31);
  CHECK(world.fatal(2).ok());
}

TEST_CASE("a joined rank may leave as any other one: what comes later fails") {
  World world(2);
  const Ticket join = world.SubmitNow(1, Join());
  world.Deliver();
  world.Leave(0);
  world.Deliver();
  REQUIRE(world.finished(1, join));
  CHECK(world.outcome(1, join).code() == StatusCode::kAborted);
}

TEST_CASE("what a joined rank announces or is told cannot be anything") {
  Coordinator coordinator(2, 0, Options{});
  Participant participant(1, 2, 0, Options{});
  Effects effects;
  participant.Submit({1, Join(), {}, true}, {}, effects);
  std::vector<wire::Announce> announcements = participant.TakeAnnouncements();
  REQUIRE(coordinator.OnAnnounce(1, std::move(announcements[0]), {}, effects).ok());
  const auto run = [&](wire::Member member) {
    wire::Decide decide;
    decide.number = 1;
    decide.first_sequence = 1;
    decide.batches = {{{std::move(member)}, {}}};
    return participant.Apply(decide, {}, effects);
  };
  wire::Member member;
  member.name = "x";
  Status status;
  SECTION("announcing an operation of the world") {
    wire::Announce announce;
    announce.fresh = {{Allreduce("x"), {}}};
    status = coordinator.OnAnnounce(1, std::move(announce), {}, effects);
  }
  SECTION("running a name that it does not know") { status = run(member); }
  SECTION("running what is no allreduce") {
    member.signature = Broadcast("x");
    status = run(member);
  }
  SECTION("running tensors that do not exist") {
    member.signature = Allreduce("x");
    member.range = {1, 1};
    status = run(member);
  }
  SECTION("a shape that no memory holds") {
    member.signature = Allreduce("x", {std::int64_t{1} << 62, 8});
    status = run(member);
  }
  SECTION("an id that is not the next one") {
    member.signature = Allreduce("x");
    member.id = 1;
    status = run(member);
  }
  CHECK(status.code() == StatusCode::kInternal);
  CHECK_FALSE(status.message().empty());
}

TEST_CASE("what can run thanks to a join runs before that join fails") {
  Options options;
  options.stall_shutdown = 10s;
  World world(3, options);
  world.SubmitEverywhere(Allreduce("busy"));
  const Ticket join = world.SubmitNow(2, Join());
  world.SubmitOn({0, 1}, Allreduce("x"));
  CHECK(world.Batches(2) == "busy");  // "x" gathers while that runs
  world.Advance(10s);
  REQUIRE(world.finished(2, join));
  CHECK(world.outcome(2, join).code() == StatusCode::kTimeout);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(world.Batches(rank) == "busy | x");
    CHECK(world.fatal(rank).ok());
  }
  CHECK(world.Batches(2) == "busy | 4*0");
}

}  // namespace
}  // namespace hvl::plan
