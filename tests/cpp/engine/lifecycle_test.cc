// Waiting, failing, stopping and forking: what happens to handles.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <thread>

#include "tests/cpp/engine/fixture.h"

namespace hvl::test {
namespace {

using Catch::Contains;
using std::chrono::milliseconds;

TEST_CASE("waiting with a time limit gives up, and the operation goes on") {
  EngineFixture fixture;
  fixture.backend->Block(true);
  std::vector<float> values{1};
  Handle handle = fixture.Submit(Allreduce("x", values));
  const Status late = handle.WaitFor(milliseconds(5));
  CHECK(late.code() == StatusCode::kTimeout);
  CHECK_THAT(late.message(), Contains("'x'"));
  CHECK_FALSE(handle.done());
  CHECK(handle.WaitFor(milliseconds(0)).code() == StatusCode::kTimeout);
  CHECK(handle.WaitFor(milliseconds(-1)).code() == StatusCode::kTimeout);
  fixture.backend->Block(false);
  CHECK(handle.WaitFor(std::chrono::nanoseconds::max()).ToString() == "OK");
}

TEST_CASE("several threads may wait for one operation") {
  EngineFixture fixture;
  fixture.HoldBack();
  std::vector<float> values{1};
  const Handle handle = fixture.Submit(Allreduce("x", values));
  std::vector<std::future<Status>> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.push_back(
        std::async(std::launch::async, [waiter = handle]() mutable { return waiter.Wait(); }));
  }
  REQUIRE(fixture.planner->Await([&] { return !fixture.planner->submissions.empty(); }));
  {
    const std::lock_guard lock(fixture.planner->mutex);
    fixture.planner->on_receive = [&](plan::Effects& effects) {
      effects.run.push_back(fixture.planner->MakeBatch(fixture.planner->submissions[0], 0, 1));
    };
  }
  fixture.mesh->DeliverFrame(1);
  for (auto& waiter : waiters) CHECK(waiter.get().ok());
}

TEST_CASE("an operation spread over batches is done with the last of them") {
  EngineFixture fixture;
  auto& planner = *fixture.planner;
  planner.on_submit = [&](const plan::Submission& submission, plan::Effects& effects) {
    effects.run.push_back(planner.MakeBatch(submission, 0, 1));
    effects.run.push_back(planner.MakeBatch(submission, 1, 2));
  };
  fixture.backend->Block(true);
  std::vector<float> values{1, 2, 3};
  Operation group = Allreduce("group", values);
  group.tensors.assign(3, group.tensors[0]);
  for (std::size_t i = 0; i < 3; ++i) {
    group.tensors[i].input = group.tensors[i].output = &values[i];
    group.tensors[i].shape = {};
  }
  Handle handle = fixture.Submit(group);
  REQUIRE(fixture.backend->Await([&] { return fixture.backend->running == 1; }));
  CHECK_FALSE(handle.done());
  fixture.backend->Block(false);
  CHECK(fixture.Outcome(handle).ok());
  CHECK(fixture.backend->piece_counts == std::vector<std::size_t>{1, 2});
}

TEST_CASE("an error of one operation leaves the session usable") {
  EngineFixture fixture;
  auto& planner = *fixture.planner;
  planner.on_submit = [](const plan::Submission& submission, plan::Effects& effects) {
    effects.finish.push_back({submission.ticket, Status(StatusCode::kMismatch, "they disagree")});
  };
  std::vector<float> values{1};
  CHECK(fixture.Outcome(fixture.Submit(Allreduce("x", values))) ==
        Status(StatusCode::kMismatch, "they disagree"));
  {
    const std::lock_guard lock(planner.mutex);
    planner.on_submit = nullptr;
  }
  CHECK(fixture.engine->health().ok());
  CHECK(fixture.Outcome(fixture.Submit(Allreduce("x", values))).ok());
}

TEST_CASE("a lost peer ends everything with the first cause") {
  EngineFixture fixture(2);
  fixture.backend->Block(true);
  std::vector<float> running{1}, ready{2}, negotiated{3};
  const Handle in_data_plane = fixture.Submit(Allreduce("running", running));
  REQUIRE(fixture.backend->Await([&] { return fixture.backend->running == 1; }));
  const Handle in_queue = fixture.Submit(Allreduce("ready", ready));
  REQUIRE(fixture.planner->Await([&] { return fixture.planner->submissions.size() == 2; }));
  {
    const std::lock_guard lock(fixture.planner->mutex);
    fixture.HoldBack();
  }
  const Handle in_planner = fixture.Submit(Allreduce("negotiated", negotiated));
  fixture.mesh->LosePeer(1, "rank 1 was killed by signal 9");
  for (const Handle& handle : {in_data_plane, in_queue, in_planner}) {
    const Status outcome = fixture.Outcome(handle);
    CHECK(outcome.code() == StatusCode::kUnavailable);
    CHECK(outcome.culprit_rank() == 1);
    CHECK_THAT(outcome.message(), Contains("signal 9"));
  }
  CHECK(fixture.engine->health().culprit_rank() == 1);
  CHECK(fixture.Refusal(Allreduce("later", ready)) == fixture.engine->health());
  const std::lock_guard lock(fixture.planner->mutex);
  REQUIRE(fixture.planner->farewell.has_value());
  CHECK(fixture.planner->farewell->culprit_rank() == 1);  // so the root cause travels
}

TEST_CASE("when the data plane fails, the planner gets the time to tell the root cause") {
  EngineFixture fixture(2);
  fixture.backend->fails = Status(StatusCode::kUnavailable, "connection reset", 1);
  std::vector<float> values{1};
  SECTION("a peer is lost") {
    fixture.planner->failure_grace = kHangLimit;
    const Handle handle = fixture.Submit(Allreduce("x", values));
    REQUIRE(fixture.planner->Await(
        [&] { return fixture.planner->log.find('d') != std::string::npos; }));
    CHECK_FALSE(handle.done());
    fixture.mesh->LosePeer(1, "rank 1 was killed by signal 9");
    CHECK_THAT(fixture.Outcome(handle).message(), Contains("signal 9"));
    CHECK_THAT(fixture.engine->health().message(), Contains("signal 9"));
  }
  SECTION("no news") {
    fixture.planner->failure_grace = milliseconds(20);
    const Handle handle = fixture.Submit(Allreduce("x", values));
    CHECK_THAT(fixture.Outcome(handle).message(), Contains("connection reset"));
    CHECK_THAT(fixture.engine->health().message(), Contains("connection reset"));
  }
}

TEST_CASE("stopping ends what is under way with Aborted, also in a blocked data plane") {
  EngineFixture fixture(2);
  fixture.backend->Block(true);
  std::vector<float> running{1}, ready{2};
  Handle in_data_plane = fixture.Submit(Allreduce("running", running));
  REQUIRE(fixture.backend->Await([&] { return fixture.backend->running == 1; }));
  Handle in_queue = fixture.Submit(Allreduce("ready", ready));
  std::thread waiter;
  SECTION("nobody waits") {}
  SECTION("a thread waits") {
    waiter = std::thread(
        [in_queue]() mutable { CHECK(in_queue.Wait().code() == StatusCode::kAborted); });
  }
  fixture.engine->Stop();
  CHECK(in_data_plane.done());
  CHECK(in_queue.done());
  CHECK(in_data_plane.Wait().code() == StatusCode::kAborted);
  CHECK(in_queue.Wait().code() == StatusCode::kAborted);
  CHECK(fixture.engine->health().code() == StatusCode::kAborted);
  CHECK(fixture.Refusal(Allreduce("later", ready)).code() == StatusCode::kAborted);
  CHECK(fixture.mesh->closed);
  CHECK(fixture.planner->farewell == Status::Ok());
  fixture.engine->Stop();  // once more is fine
  if (waiter.joinable()) waiter.join();
}

TEST_CASE("a batch that a waiting thread runs itself is aborted as well") {
  EngineFixture fixture(2);
  fixture.backend->Block(true);
  std::vector<float> values{1};
  std::thread waiter([&] {
    Handle handle = fixture.Submit(Allreduce("x", values), true);
    CHECK_THAT(handle.Wait().message(), Contains("signal 9"));
  });
  REQUIRE(fixture.backend->Await([&] { return fixture.backend->running == 1; }));
  // The waiter is in the data plane, so somebody else must hear this.
  fixture.mesh->LosePeer(1, "rank 1 was killed by signal 9");
  waiter.join();
  CHECK(fixture.engine->health().culprit_rank() == 1);
}

TEST_CASE("a handle outlives its engine") {
  Handle handle;
  std::vector<float> values{1}, gathered_from{1, 2};
  Handle gather;
  {
    EngineFixture fixture;
    handle = fixture.Submit(Allreduce("x", values));
    Operation operation = Allreduce("g", gathered_from);
    operation.kind = OpKind::kAllgather;
    operation.tensors[0].output = nullptr;
    gather = fixture.Submit(operation);
    CHECK(fixture.Outcome(gather).ok());
  }
  CHECK(handle.done());
  CHECK(handle.Wait().ok());
  REQUIRE(gather.gathered().size() == 1);
  CHECK(static_cast<const float*>(gather.gathered()[0].data)[1] == 2);
  CHECK(gather.gathered()[0].first_dims == std::vector<std::int64_t>{2});
}

TEST_CASE("engines may be stopped by several threads at once, and while others submit") {
  EngineFixture fixture;
  std::atomic<bool> stopped{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      std::vector<float> values{1};
      for (int n = 0; !stopped.load(); ++n) {
        auto handle = fixture.engine->Submit(Allreduce(Format("{}.{}", i, n), values), n % 2 == 0);
        if (!handle.ok()) {
          CHECK(handle.status().code() == StatusCode::kAborted);
          break;
        }
        const Status outcome = handle->Wait();
        CHECK((outcome.ok() || outcome.code() == StatusCode::kAborted));
      }
    });
  }
  REQUIRE(fixture.backend->Await([&] { return fixture.backend->calls > 100; }));
  std::thread other([&] { fixture.engine->Stop(); });
  fixture.engine->Stop();
  other.join();
  stopped.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(fixture.engine->counters().operations_submitted ==
        fixture.engine->counters().operations_completed);
}

TEST_CASE("a forked child gets a clear error from every call and may exit") {
  auto fixture = std::make_unique<EngineFixture>(2);
  fixture->HoldBack();
  std::vector<float> values{1};
  Handle pending = fixture->Submit(Allreduce("x", values));
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Checks of the test framework belong to the parent: the child answers with its exit code.
    const auto refused = [](const Status& status) {
      return status.code() == StatusCode::kInvalidArgument &&
             status.message().find("after fork") != std::string::npos;
    };
    bool good = refused(fixture->engine->Submit(Allreduce("y", values), false).status());
    good = good && refused(fixture->engine->health());
    good = good && refused(fixture->engine->Allocate(64).status());
    good = good && pending.done() && refused(pending.Wait());
    good = good && refused(pending.WaitFor(milliseconds(1)));
    fixture->engine->Stop();
    fixture->engine->SetTrace(nullptr, false);
    fixture->engine.reset();
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK_FALSE(pending.done());
  CHECK(fixture->engine->health().ok());  // the parent goes on
}

}  // namespace
}  // namespace hvl::test
