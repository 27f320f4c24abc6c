// Reducescatter, alltoall and join: what is refused, what is announced, what comes out.
#include "tests/cpp/engine/fixture.h"

namespace hvl::test {
namespace {

using Catch::Contains;
using Rows = std::vector<std::int64_t>;

Operation Rowwise(OpKind kind, const std::vector<float>& values, Shape shape) {
  Operation operation;
  operation.kind = kind;
  operation.name = std::string("x");
  operation.reduce_op = ReduceOp::kSum;
  operation.tensors = {{.input = values.data(), .shape = std::move(shape)}};
  return operation;
}

std::vector<float> Values(const GatheredTensor& tensor) {
  const auto* data = static_cast<const float*>(tensor.data);
  return {data, data + ElementCount(tensor.shape)};
}

/// The batches of the planner are those of a world of two.
void PlanForTwo(EngineFixture& fixture) {
  fixture.planner->on_submit = [&fixture](const plan::Submission& submission,
                                          plan::Effects& effects) {
    effects.run.push_back(fixture.planner->MakeBatch(submission, 0, 1, 2));
  };
}

TEST_CASE("a reducescatter gives the first ranks one row more") {
  EngineFixture fixture(2);
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  Operation operation = Rowwise(OpKind::kReducescatter, values, {3, 2});
  operation.reduce_op = ReduceOp::kAverage;
  operation.prescale = 0.5;
  operation.postscale = 3;
  const Handle handle = fixture.Submit(operation);
  REQUIRE(fixture.Outcome(handle).ok());
  REQUIRE(handle.gathered().size() == 1);
  const GatheredTensor& result = handle.gathered()[0];
  CHECK(result.shape == Shape{2, 2});
  CHECK(Values(result) == std::vector<float>{1, 2, 3, 4});
  const std::lock_guard lock(fixture.backend->mutex);
  REQUIRE(fixture.backend->specs.size() == 1);
  CHECK(fixture.backend->specs[0] ==
        tensor::ReduceSpec{
            .op = ReduceOp::kAverage, .prescale = 0.5, .postscale = 3, .rank_count = 2});
}

TEST_CASE("a reducescatter is announced with its whole shape") {
  EngineFixture fixture(2);
  const std::vector<float> values(6);
  REQUIRE(fixture.Outcome(fixture.Submit(Rowwise(OpKind::kReducescatter, values, {3, 2}))).ok());
  const std::lock_guard lock(fixture.planner->mutex);
  const plan::Submission& submission = fixture.planner->submissions.at(0);
  CHECK(submission.signature->tensors.at(0).shape == Shape{3, 2});
  CHECK(submission.signature->reduce_op == ReduceOp::kSum);
  CHECK(submission.first_dims.empty());
}

TEST_CASE("a reducescatter of nothing asks no data plane") {
  EngineFixture fixture(2);
  const Handle handle = fixture.Submit(Rowwise(OpKind::kReducescatter, {}, {0, 2}));
  REQUIRE(fixture.Outcome(handle).ok());
  CHECK(handle.gathered()[0].shape == Shape{0, 2});
  CHECK(fixture.backend->calls == 0);
}

TEST_CASE("an alltoall tells what it got from whom") {
  EngineFixture fixture(2);
  PlanForTwo(fixture);
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  Operation operation = Rowwise(OpKind::kAlltoall, values, {3, 2});
  operation.splits = {1, 2};
  const Handle handle = fixture.Submit(operation);
  REQUIRE(fixture.Outcome(handle).ok());
  const GatheredTensor& result = handle.gathered().at(0);
  CHECK(result.shape == Shape{2, 2});
  CHECK(result.first_dims == Rows{1, 1});
  CHECK(Values(result) == std::vector<float>{1, 2, 1, 2});
  const std::lock_guard lock(fixture.planner->mutex);
  const plan::Submission& submission = fixture.planner->submissions.at(0);
  CHECK(submission.signature->tensors.at(0).shape == Shape{2});
  CHECK(submission.first_dims == Rows{1, 2});
}

TEST_CASE("an alltoall without splits divides its rows equally, with zero rows too") {
  EngineFixture fixture(2);
  PlanForTwo(fixture);
  const std::vector<float> values{1, 2, 3, 4};
  const Handle some = fixture.Submit(Rowwise(OpKind::kAlltoall, values, {4}));
  REQUIRE(fixture.Outcome(some).ok());
  CHECK(some.gathered().at(0).first_dims == Rows{2, 2});
  const Handle none = fixture.Submit(Rowwise(OpKind::kAlltoall, {}, {0}));
  REQUIRE(fixture.Outcome(none).ok());
  CHECK(none.gathered().at(0).shape == Shape{0});
  CHECK(fixture.backend->calls == 1);
}

TEST_CASE("mistakes in splits and scalars are refused in Horovod's words") {
  EngineFixture fixture(2);
  const std::vector<float> values(8);
  struct Mistake {
    OpKind kind;
    Shape shape;
    Rows splits;
    std::string says;
  };
  const std::vector<Mistake> mistakes{
      {OpKind::kReducescatter, {}, {}, "Reducescatter does not support scalar inputs"},
      {OpKind::kAlltoall, {}, {}, "scalar"},
      {OpKind::kAlltoall, {3}, {}, "not an even multiple of the number of workers"},
      {OpKind::kAlltoall, {3}, {3}, "splits does not equal number of workers"},
      {OpKind::kAlltoall, {3}, {1, 3}, "greater than the first dimension"},
      {OpKind::kAlltoall, {3}, {-1, 3}, "negative"},
  };
  for (const Mistake& mistake : mistakes) {
    CAPTURE(mistake.says);
    Operation operation = Rowwise(mistake.kind, values, mistake.shape);
    operation.splits = mistake.splits;
    const Status refusal = fixture.Refusal(operation);
    CHECK(refusal.code() == StatusCode::kInvalidArgument);
    CHECK_THAT(refusal.message(), Contains(mistake.says));
  }
  Operation two = Rowwise(OpKind::kAlltoall, values, {4});
  two.tensors.push_back(two.tensors[0]);
  CHECK_THAT(fixture.Refusal(two).message(), Contains("one tensor"));
  Operation placed = Rowwise(OpKind::kReducescatter, values, {4});
  std::vector<float> own(8);
  placed.tensors[0].output = own.data();
  CHECK_THAT(fixture.Refusal(placed).message(), Contains("leave `output` null"));
}

TEST_CASE("a rank that has joined contributes zeros and keeps nothing") {
  EngineFixture fixture(2);
  fixture.planner->on_receive = [&fixture](plan::Effects& effects) {
    plan::Batch batch;
    batch.sequence = fixture.planner->next_sequence++;
    batch.spec.kind = OpKind::kAllreduce;
    for (const std::int64_t count : {3, 0, 5}) {
      plan::BatchEntry entry;
      entry.zeros = count;
      batch.entries.push_back(entry);
    }
    effects.run.push_back(batch);
  };
  for (std::size_t round = 1; round <= 2; ++round) {
    fixture.mesh->DeliverFrame(1);
    // Two of the three have elements.
    REQUIRE(fixture.backend->Await([&] { return fixture.backend->inputs.size() == 2 * round; }));
  }
  const std::lock_guard lock(fixture.backend->mutex);
  CHECK(fixture.backend->inputs[0] == std::vector<std::byte>(12));
  CHECK(fixture.backend->inputs[3] == std::vector<std::byte>(20));
}

TEST_CASE("a join tells which rank was the last") {
  EngineFixture fixture(2);
  fixture.planner->on_submit = [&fixture](const plan::Submission& submission,
                                          plan::Effects& effects) {
    effects.run.push_back(fixture.planner->MakeBatch(submission, 0, 1));
    effects.run.back().entries[0].first_dims = {1};
  };
  Operation operation;
  operation.kind = OpKind::kJoin;
  const Handle handle = fixture.Submit(operation);
  REQUIRE(fixture.Outcome(handle).ok());
  CHECK(handle.gathered().at(0).first_dims == Rows{1});
  CHECK(fixture.backend->calls == 0);
}

TEST_CASE("after a join unnamed operations of the world count from zero") {
  EngineFixture fixture(2);
  std::vector<std::string> names;
  fixture.planner->on_submit = [&](const plan::Submission& submission, plan::Effects& effects) {
    names.push_back(submission.signature->name);
    effects.run.push_back(fixture.planner->MakeBatch(submission, 0, 1));
    effects.run.back().entries[0].first_dims = {0};
  };
  std::vector<float> values(2);
  Operation join;
  join.kind = OpKind::kJoin;
  for (const Operation& operation :
       {Allreduce("", values), Allreduce("", values), join, Allreduce("", values)}) {
    REQUIRE(fixture.Outcome(fixture.Submit(operation)).ok());
  }
  CHECK(names == std::vector<std::string>{"allreduce.noname.0", "allreduce.noname.1",
                                          "join.noname.0", "allreduce.noname.0"});
}

}  // namespace
}  // namespace hvl::test
