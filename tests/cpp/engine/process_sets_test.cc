// Process sets: registration, names and counters per set, and the data plane of each.
#include "tests/cpp/engine/fixture.h"

namespace hvl::test {
namespace {

using Catch::Contains;

Operation Within(ProcessSetId set, Operation operation) {
  operation.process_set = set;
  return operation;
}

Operation Broadcast(std::vector<float>& values, int root) {
  Operation operation = Allreduce("b", values);
  operation.kind = OpKind::kBroadcast;
  operation.root_rank = root;
  return operation;
}

TEST_CASE("process sets are numbered, and agreed on by name and ranks") {
  EngineFixture fixture(4);
  const auto first = fixture.engine->AddProcessSet({2, 0});
  const auto second = fixture.engine->AddProcessSet({1, 3});
  REQUIRE(first.status() == Status::Ok());
  REQUIRE(second.status() == Status::Ok());
  CHECK(*first == 1);
  CHECK(*second == 2);
  CHECK(*fixture.engine->ProcessSetRanks(*first) == std::vector<int>{0, 2});
  CHECK(*fixture.engine->ProcessSetRanks(kWorldSet) == std::vector<int>{0, 1, 2, 3});
  CHECK(fixture.engine->RemoveProcessSet(*first) == Status::Ok());
  const std::lock_guard lock(fixture.planner->mutex);
  const auto& submissions = fixture.planner->submissions;
  REQUIRE(submissions.size() == 3);
  CHECK(submissions[0].signature->kind == OpKind::kProcessSet);
  CHECK(submissions[0].signature->name == "process_set.change.0");
  CHECK(submissions[0].signature->process_set == 1);
  CHECK(submissions[0].signature->ranks == std::vector<std::int32_t>{0, 2});
  CHECK(submissions[2].signature->name == "process_set.change.2");
  CHECK(submissions[2].signature->process_set == 1);
  CHECK(submissions[2].signature->ranks.empty());
  CHECK(submissions[2].transient);
}

TEST_CASE("ranks that make no process set are refused") {
  EngineFixture fixture(3);
  for (const std::vector<int>& ranks :
       {std::vector<int>{}, std::vector<int>{0, 3}, std::vector<int>{-1}, std::vector<int>{1, 1}}) {
    const Status status = fixture.engine->AddProcessSet(ranks).status();
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_THAT(status.message(), Contains("from 0 to 2"));
  }
  REQUIRE(fixture.engine->AddProcessSet({0, 1}).ok());
  const Status twice = fixture.engine->AddProcessSet({1, 0}).status();
  CHECK(twice.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(twice.message(), Contains("[0, 1]") && Contains("exists"));
  CHECK(fixture.engine->RemoveProcessSet(kWorldSet).code() == StatusCode::kInvalidArgument);
  CHECK(fixture.engine->RemoveProcessSet(9).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("operations of strangers to a process set are refused") {
  EngineFixture fixture(3);
  std::vector<float> values{1};
  const Status unknown = fixture.Refusal(Within(1, Allreduce("x", values)));
  CHECK(unknown.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(unknown.message(), Contains("process set 1 does not exist"));
  REQUIRE(fixture.engine->AddProcessSet({1, 2}).ok());
  const Status foreign = fixture.Refusal(Within(1, Allreduce("x", values)));
  CHECK(foreign.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(foreign.message(), Contains("rank 0 is not a member of process set 1 [1, 2]"));
  CHECK(fixture.backend->parts_alive == 0);
}

TEST_CASE("a process set runs on its own part of the data plane, and divides by its own size") {
  EngineFixture fixture(4);
  REQUIRE(fixture.engine->AddProcessSet({0, 3}).ok());
  std::vector<float> values{1};
  Operation average = Within(1, Allreduce("x", values));
  average.reduce_op = ReduceOp::kAverage;
  REQUIRE(fixture.Outcome(fixture.Submit(average)).ok());
  REQUIRE(fixture.Outcome(fixture.Submit(Within(1, Broadcast(values, 3)))).ok());
  REQUIRE(fixture.Outcome(fixture.Submit(Broadcast(values, 3))).ok());
  const Status outside = fixture.Refusal(Within(1, Broadcast(values, 1)));
  CHECK_THAT(outside.message(), Contains("invalid root rank 1") && Contains("[0, 3]"));
  const std::lock_guard lock(fixture.backend->mutex);
  CHECK(fixture.backend->ranks == std::vector<std::vector<int>>{{0, 3}, {0, 3}, {}});
  CHECK(fixture.backend->roots == std::vector<int>{1, 3});
  CHECK(fixture.backend->specs.at(0).rank_count == 2);
}

TEST_CASE("a name may be in flight once in every process set") {
  EngineFixture fixture(2);
  REQUIRE(fixture.engine->AddProcessSet({0}).ok());
  fixture.HoldBack();
  std::vector<float> values{1}, others{2};
  fixture.Submit(Allreduce("x", values));
  fixture.Submit(Within(1, Allreduce("x", others)));
  CHECK_THAT(fixture.Refusal(Within(1, Allreduce("x", others))).message(),
             Contains("same name as another"));
}

TEST_CASE("unnamed operations are counted per process set, and carry where they come from") {
  EngineFixture fixture(2);
  REQUIRE(fixture.engine->AddProcessSet({0}).ok());
  std::vector<float> values{1};
  Operation unnamed = Allreduce("", values);
  unnamed.site = "train.py:12";
  REQUIRE(fixture.Outcome(fixture.Submit(unnamed)).ok());
  REQUIRE(fixture.Outcome(fixture.Submit(Within(1, unnamed))).ok());
  const std::lock_guard lock(fixture.planner->mutex);
  const auto& submissions = fixture.planner->submissions;
  REQUIRE(submissions.size() == 3);
  CHECK(submissions[1].signature->name == "allreduce.noname.0");
  CHECK(submissions[2].signature->name == "allreduce.noname.0");
  CHECK(submissions[2].signature->process_set == 1);
  CHECK(submissions[2].site == "train.py:12");
}

TEST_CASE("a removed process set is gone, and its part of the data plane with it") {
  EngineFixture fixture(2);
  REQUIRE(fixture.engine->AddProcessSet({0}).ok());
  CHECK(fixture.backend->parts_alive == 1);
  std::vector<float> values{1};
  CHECK(fixture.Outcome(fixture.Submit(Within(1, Allreduce("x", values)))).ok());
  REQUIRE(fixture.engine->RemoveProcessSet(1).ok());
  CHECK(fixture.backend->parts_alive == 0);
  CHECK_THAT(fixture.Refusal(Within(1, Allreduce("x", values))).message(),
             Contains("does not exist"));
  CHECK(*fixture.engine->AddProcessSet({0}) == 2);
  fixture.engine->Stop();
  CHECK(fixture.backend->parts_alive == 0);
}

}  // namespace
}  // namespace hvl::test
