// What the planner is told of threads that wait, and how unnamed operations are numbered in rounds.
#include <functional>
#include <future>
#include <thread>

#include "tests/cpp/engine/fixture.h"

namespace hvl::test {
namespace {

using plan::Waiter;
using std::chrono::milliseconds;

/// What the planner hears first of a thread that waits, or nothing in time.
std::optional<Waiter> FirstWaiter(EngineFixture& fixture) {
  if (!fixture.planner->Await([&] { return !fixture.planner->waiters.empty(); })) return {};
  const std::lock_guard lock(fixture.planner->mutex);
  return fixture.planner->waiters.front();
}

TEST_CASE("the planner hears whether who waits is all that could submit something") {
  struct Case {
    std::string description;
    std::function<void(EngineFixture&)> elsewhere;  // on another thread, before
    Waiter expected;
  };
  std::vector<float> values{1};
  const auto named = [&](EngineFixture& f) { f.Submit(Allreduce("other", values)); };
  const auto unnamed = [&](EngineFixture& f) { f.Submit(Barrier()); };
  const auto nothing = [](EngineFixture&) {};
  const std::vector<Case> cases = {
      {"nothing else", nothing, Waiter::kAlone},
      {"a named operation of another thread", named, Waiter::kUnnamed},
      {"an unnamed operation of another thread", unnamed, Waiter::kAny},
  };
  for (const Case& some : cases) {
    INFO(some.description);
    EngineFixture fixture;
    fixture.HoldBack();
    std::promise<void> submitted, over;  // a thread that has ended may give its id to the next
    std::thread other([&] {
      some.elsewhere(fixture);
      submitted.set_value();
      over.get_future().wait();
    });
    submitted.get_future().wait();
    std::thread waiter([&] {
      Handle handle = fixture.Submit(Barrier());
      static_cast<void>(handle.Wait());
    });
    CHECK(FirstWaiter(fixture) == some.expected);
    over.set_value();
    fixture.engine->Stop();
    waiter.join();
    other.join();
  }
}

TEST_CASE("who waits for what another thread has submitted is not blocked in its own") {
  EngineFixture fixture;
  fixture.HoldBack();
  Handle handle = fixture.Submit(Barrier());
  std::thread waiter([handle]() mutable { static_cast<void>(handle.Wait()); });
  CHECK(FirstWaiter(fixture) == Waiter::kAny);
  fixture.engine->Stop();
  waiter.join();
}

TEST_CASE("who waits until a time is not blocked") {
  EngineFixture fixture;
  fixture.HoldBack();
  Handle handle = fixture.Submit(Barrier());
  for (int i = 0; i < 3; ++i)
    CHECK(handle.WaitFor(milliseconds(20)).code() == StatusCode::kTimeout);
  const std::lock_guard lock(fixture.planner->mutex);
  for (const Waiter waiter : fixture.planner->waiters) CHECK(waiter == Waiter::kAny);
}

TEST_CASE("a wait that is interrupted ends, and the planner hears of it") {
  EngineFixture fixture;
  fixture.HoldBack();
  Handle handle = fixture.Submit(Barrier());
  int asked = 0;
  const Status outcome = handle.Wait([&] { return ++asked == 2; });
  CHECK(outcome.code() == StatusCode::kAborted);
  CHECK_FALSE(handle.done());
  CHECK(fixture.planner->Await([&] {
    return !fixture.planner->waiters.empty() && fixture.planner->waiters.back() == Waiter::kAny;
  }));
  const std::lock_guard lock(fixture.planner->mutex);
  CHECK(fixture.planner->waiters.front() == Waiter::kAlone);
}

TEST_CASE("after a round unnamed operations count from zero again, in the next one") {
  EngineFixture fixture(2);
  fixture.HoldBack();
  std::vector<float> values{1}, others{2};
  const Handle failing = fixture.Submit(Allreduce("", values));
  const Handle joining = fixture.Submit([] {
    Operation join;
    join.kind = OpKind::kJoin;
    return join;
  }());
  fixture.planner->on_receive = [&](plan::Effects& effects) {
    effects.ended_rounds.push_back(kWorldSet);
    const plan::Submission& first = fixture.planner->submissions.front();
    effects.finish.push_back({first.ticket, Status(StatusCode::kMismatch, "apart")});
  };
  REQUIRE(fixture.planner->Await([&] { return fixture.planner->submissions.size() == 2; }));
  fixture.mesh->DeliverFrame(1);
  REQUIRE(fixture.Outcome(failing).message() == "apart");
  fixture.Submit(Allreduce("", others));
  fixture.Submit(Barrier());
  REQUIRE(fixture.planner->Await([&] { return fixture.planner->submissions.size() == 4; }));
  const std::lock_guard lock(fixture.planner->mutex);
  const std::vector<plan::Submission>& submissions = fixture.planner->submissions;
  CHECK(submissions[0].signature->name == "allreduce.noname.0");
  CHECK(submissions[0].round == 0);
  CHECK(submissions[1].signature->name == "join.noname.0");
  CHECK(submissions[2].signature->name == "allreduce.noname.1.0");
  CHECK(submissions[2].round == 1);
  CHECK(submissions[3].signature->name == "barrier.noname.1.0");
}

}  // namespace
}  // namespace hvl::test
