// What Submit refuses, and how operations are named and counted.
#include <limits>

#include "csrc/engine/registry.h"
#include "tests/cpp/engine/fixture.h"

namespace hvl::test {
namespace {

using Catch::Contains;
using Catch::StartsWith;

TEST_CASE("an operation runs and its handle tells so") {
  EngineFixture fixture;
  std::vector<float> values{1, 2, 3};
  Handle handle = fixture.Submit(Allreduce("x", values));
  CHECK(fixture.Outcome(handle).ok());
  CHECK(handle.done());
  CHECK(fixture.Outcome(handle).ok());  // waiting twice is fine
  const SessionCounters counters = fixture.engine->counters();
  CHECK(counters.operations_submitted == 1);
  CHECK(counters.operations_completed == 1);
  CHECK(counters.batches_dispatched == 1);
  CHECK(counters.bytes_reduced == 12);
}

TEST_CASE("unnamed operations are numbered per kind and do not come again") {
  EngineFixture fixture;
  std::vector<float> values{1};
  for (int i = 0; i < 2; ++i) {
    CHECK(fixture.Outcome(fixture.Submit(Allreduce("", values))).ok());
    CHECK(fixture.Outcome(fixture.Submit(Barrier())).ok());
  }
  const std::lock_guard lock(fixture.planner->mutex);
  const auto& submissions = fixture.planner->submissions;
  REQUIRE(submissions.size() == 4);
  CHECK(submissions[0].signature->name == "allreduce.noname.0");
  CHECK(submissions[1].signature->name == "barrier.noname.0");
  CHECK(submissions[2].signature->name == "allreduce.noname.1");
  CHECK(submissions[3].signature->name == "barrier.noname.1");
  for (const auto& submission : submissions) CHECK(submission.transient);
}

TEST_CASE("a name in flight is refused, and free again afterwards") {
  EngineFixture fixture;
  fixture.backend->Block(true);
  std::vector<float> values{1}, others{2};
  const Handle first = fixture.Submit(Allreduce("x", values));
  const Status refusal = fixture.Refusal(Allreduce("x", others));
  CHECK(refusal.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(refusal.message(), Contains("allreduce 'x'") && Contains("same name as another"));
  fixture.backend->Block(false);
  CHECK(fixture.Outcome(first).ok());
  CHECK(fixture.Outcome(fixture.Submit(Allreduce("x", others))).ok());
}

TEST_CASE("more operations than the limit are refused") {
  EngineFixture fixture(1, {.max_outstanding = 2});
  fixture.backend->Block(true);
  std::vector<float> a{1}, b{1}, c{1};
  const Handle first = fixture.Submit(Allreduce("a", a));
  const Handle second = fixture.Submit(Allreduce("b", b));
  const Status refusal = fixture.Refusal(Allreduce("c", c));
  CHECK(refusal.code() == StatusCode::kResourceExhausted);
  CHECK_THAT(refusal.message(), Contains("HVL_MAX_OUTSTANDING"));
  fixture.backend->Block(false);
  CHECK(fixture.Outcome(first).ok());
  CHECK(fixture.Outcome(second).ok());
  CHECK(fixture.Outcome(fixture.Submit(Allreduce("c", c))).ok());
}

/// A mistake, made in an otherwise good allreduce named 'x' of a world of two, and what the error
/// must contain.
struct Mistake {
  std::string says;
  std::function<void(Operation&)> make;
};

TEST_CASE("mistakes that one rank can see are refused with a reason") {
  const bool known = GENERATE(false, true);  // a good operation of the same name has run before
  EngineFixture fixture(2);
  std::vector<float> values(8);
  if (known) CHECK(fixture.Outcome(fixture.Submit(Allreduce("x", values))).ok());
  const std::vector<Mistake> mistakes{
      {"at least one tensor", [](Operation& o) { o.tensors.clear(); }},
      {"not known", [](Operation& o) { o.kind = static_cast<OpKind>(17); }},
      {"not known", [](Operation& o) { o.tensors[0].dtype = static_cast<DType>(77); }},
      {"negative", [](Operation& o) { o.tensors[0].shape = {2, -1}; }},
      {"more than any memory",
       [](Operation& o) { o.tensors[0].shape = {std::int64_t{1} << 40, std::int64_t{1} << 40}; }},
      {"`input` is null", [](Operation& o) { o.tensors[0].input = nullptr; }},
      {"`output` is null", [](Operation& o) { o.tensors[0].output = nullptr; }},
      {"overlap",
       [&values](Operation& o) {
         o.tensors[0].shape = {4};
         o.tensors[0].output = values.data() + 1;
       }},
      {"bool", [](Operation& o) { o.tensors[0].dtype = DType::kBool; }},
      {"finite", [](Operation& o) { o.prescale = std::numeric_limits<double>::quiet_NaN(); }},
      {"root rank 2",
       [](Operation& o) {
         o.kind = OpKind::kBroadcast;
         o.root_rank = 2;
       }},
      {"root rank -1",
       [](Operation& o) {
         o.kind = OpKind::kBroadcast;
         o.root_rank = -1;
       }},
      {"scalar",
       [](Operation& o) {
         o.kind = OpKind::kAllgather;
         o.tensors[0].shape = {};
         o.tensors[0].output = nullptr;
       }},
      {"leave `output` null", [](Operation& o) { o.kind = OpKind::kAllgather; }},
      {"barrier has no tensors", [](Operation& o) { o.kind = OpKind::kBarrier; }},
      {"tensor 1: ",
       [](Operation& o) {
         o.tensors.push_back(o.tensors[0]);
         o.tensors[1].shape = {-3};
       }},
      {"name", [](Operation& o) { o.name = std::string(5000, 'n'); }},
      {"UTF-8", [](Operation& o) { o.name = "\xff\xfe"; }},
      {"dimensions", [](Operation& o) { o.tensors[0].shape = std::vector<std::int64_t>(100, 1); }},
  };
  for (const Mistake& mistake : mistakes) {
    Operation operation = Allreduce("x", values);
    mistake.make(operation);
    CAPTURE(mistake.says);
    const Status refusal = fixture.Refusal(operation);
    CHECK(refusal.code() == StatusCode::kInvalidArgument);
    CHECK_THAT(refusal.message(), Contains(mistake.says));
  }
  Operation unnamed = Allreduce("", values);
  unnamed.tensors[0].output = nullptr;
  CHECK_THAT(fixture.Refusal(unnamed).message(), StartsWith("unnamed allreduce: `output` is null"));
  CHECK(fixture.Outcome(fixture.Submit(Allreduce("x", values))).ok());
}

TEST_CASE("tensors without elements need no memory and no data plane") {
  EngineFixture fixture;
  Operation operation;
  operation.tensors = {{.shape = {0, 4}}};
  CHECK(fixture.Outcome(fixture.Submit(operation)).ok());
  operation.kind = OpKind::kBroadcast;
  CHECK(fixture.Outcome(fixture.Submit(operation)).ok());
  operation.kind = OpKind::kAllgather;
  const Handle gather = fixture.Submit(operation);
  CHECK(fixture.Outcome(gather).ok());
  CHECK(gather.gathered().at(0).shape == Shape{0, 4});
  CHECK(gather.gathered().at(0).data == nullptr);
  CHECK(fixture.backend->calls == 0);
}

TEST_CASE("the input of a broadcast is needed on the root only") {
  EngineFixture fixture(2);
  std::vector<float> values{1};
  Operation operation = Allreduce("x", values);
  operation.kind = OpKind::kBroadcast;
  operation.tensors[0].input = nullptr;
  operation.root_rank = 0;
  CHECK(fixture.Refusal(operation).code() == StatusCode::kInvalidArgument);
  operation.root_rank = 1;
  CHECK(fixture.Outcome(fixture.Submit(operation)).ok());
}

TEST_CASE("an operation that comes again brings the same signature, a changed one its own") {
  EngineFixture fixture(2);
  std::vector<float> values(8), others(8);
  const auto submitted = [&](Operation operation) {
    const Handle handle = fixture.Submit(std::move(operation));
    CHECK(fixture.Outcome(handle).ok());
    const std::lock_guard lock(fixture.planner->mutex);
    return fixture.planner->submissions.back();
  };
  const plan::Submission first = submitted(Allreduce("x", values));
  Operation again = Allreduce("x", others);
  again.site = "train.py:1";
  const plan::Submission second = submitted(again);
  CHECK(&*second.signature == &*first.signature);
  CHECK(second.site == "train.py:1");

  const std::vector<std::function<void(Operation&)>> changes{
      [](Operation& o) { o.tensors[0].shape = {2, 4}; },
      [](Operation& o) { o.tensors[0].shape = {4}; },
      [](Operation& o) { o.tensors[0].dtype = DType::kInt32; },
      [](Operation& o) { o.tensors[0].layout = 3; },
      [](Operation& o) { o.tensors.push_back(o.tensors[0]); },
      [](Operation& o) { o.reduce_op = ReduceOp::kMax; },
      [](Operation& o) { o.prescale = 2; },
      [](Operation& o) { o.postscale = 2; },
      [](Operation& o) { o.root_rank = 1; },
      [](Operation& o) { o.kind = OpKind::kBroadcast; },
      [](Operation& o) { o.name.push_back('y'); },
  };
  wire::Signature before = *second.signature;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    Operation changed = Allreduce("x", values);
    changes[i](changed);
    const wire::Signature signature = *submitted(changed).signature;
    CHECK_FALSE(signature == before);
    CHECK(signature == *submitted(changed).signature);
    before = signature;
  }
}

TEST_CASE("a shared operation is submitted again and again, and lives until it has ended") {
  EngineFixture fixture;
  std::vector<float> values{1};
  Operation named = Allreduce("x", values);
  named.site = "train.py:1";
  auto shared = std::make_shared<const Operation>(std::move(named));
  for (int i = 0; i < 2; ++i) {
    const Result<Handle> handle = fixture.engine->Submit(shared, false);
    REQUIRE(handle.status() == Status::Ok());
    CHECK(fixture.Outcome(*handle).ok());
  }
  const std::weak_ptr<const Operation> watched = shared;
  fixture.backend->Block(true);
  const Result<Handle> last = fixture.engine->Submit(std::move(shared), false);
  CHECK_FALSE(watched.expired());
  fixture.backend->Block(false);
  CHECK(fixture.Outcome(*last).ok());
  const std::lock_guard lock(fixture.planner->mutex);
  for (const plan::Submission& submission : fixture.planner->submissions) {
    CHECK(submission.signature->name == "x");
    CHECK(submission.site == "train.py:1");
  }
}

TEST_CASE("a shared operation without a name gets one each time and keeps none") {
  EngineFixture fixture;
  std::vector<float> values{1};
  const auto shared = std::make_shared<const Operation>(Allreduce("", values));
  for (int i = 0; i < 2; ++i) {
    const Result<Handle> handle = fixture.engine->Submit(shared, false);
    REQUIRE(handle.status() == Status::Ok());
    CHECK(fixture.Outcome(*handle).ok());
  }
  CHECK(shared->name.empty());
  const std::lock_guard lock(fixture.planner->mutex);
  CHECK(fixture.planner->submissions[0].signature->name == "allreduce.noname.0");
  CHECK(fixture.planner->submissions[1].signature->name == "allreduce.noname.1");
}

TEST_CASE("an allgather that comes again brings its own first dimension") {
  EngineFixture fixture;
  std::vector<float> values(8);
  for (const std::int64_t rows : {1, 2}) {
    Operation operation = Allreduce("x", values);
    operation.kind = OpKind::kAllgather;
    operation.tensors[0].output = nullptr;
    operation.tensors[0].shape = {rows, 4};
    CHECK(fixture.Outcome(fixture.Submit(operation)).ok());
    const std::lock_guard lock(fixture.planner->mutex);
    CHECK(fixture.planner->submissions.back().first_dims == std::vector<std::int64_t>{rows});
  }
}

TEST_CASE("what ranks must agree on leaves out what does not matter to the kind") {
  EngineFixture fixture;
  std::vector<float> values{1, 2};
  Operation operation = Allreduce("x", values);
  operation.kind = OpKind::kAllgather;
  operation.tensors[0].output = nullptr;
  operation.tensors[0].shape = {1, 2};
  operation.prescale = 3;
  operation.root_rank = 7;
  CHECK(fixture.Outcome(fixture.Submit(operation)).ok());
  const std::lock_guard lock(fixture.planner->mutex);
  const plan::Submission& submission = fixture.planner->submissions.at(0);
  CHECK(submission.signature->prescale == 1.0);
  CHECK(submission.signature->root_rank == 0);
  CHECK(submission.signature->tensors.at(0).shape == Shape{2});
  CHECK(submission.first_dims == std::vector<std::int64_t>{1});
}

TEST_CASE("what somebody waits for is let go when the session ends, untaken") {
  Operation operation;
  operation.name = "x";
  auto state = std::make_shared<Handle::State>(std::move(operation), nullptr);
  engine::Registry registry(1);
  REQUIRE(registry.Admit(state, {}).ok());
  registry.Await(state, true);
  registry.Close({StatusCode::kAborted, "the end"});
  CHECK(state.use_count() == 1);
}

}  // namespace
}  // namespace hvl::test
