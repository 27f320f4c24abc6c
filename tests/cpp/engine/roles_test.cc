// Who does the work, in which order, and that nobody does any while there is none.
#include <ctime>
#include <thread>

#include "csrc/engine/role.h"
#include "tests/cpp/engine/fixture.h"
#include "tests/support/log_capture.h"
#include "tests/support/process_usage.h"

namespace hvl::test {
namespace {

using std::chrono::milliseconds;

// The analysis wants every attempt to be followed by a decision.
HVL_ATTRIBUTE(no_thread_safety_analysis)
void CheckRole() {
  engine::Role role;
  REQUIRE(role.TryTake());
  CHECK_FALSE(role.TryTake());
  CHECK(role.taken());
  role.Release();
  CHECK(role.TryTake());
}

TEST_CASE("a role belongs to one thread at a time") { CheckRole(); }

TEST_CASE("a waiting thread runs a lone operation itself") {
  EngineFixture fixture;
  REQUIRE(fixture.mesh->Await([&] { return fixture.mesh->sleeps > 0; }));
  std::vector<float> values{1};
  // The threads of the engine start up at their leisure and may be faster in the beginning.
  bool ran_here = false;
  for (int i = 0; i < 1000 && !ran_here; ++i) {
    Handle handle = fixture.Submit(Allreduce("x", values), true);
    CHECK(handle.Wait().ok());
    const std::lock_guard lock(fixture.backend->mutex);
    ran_here = fixture.backend->threads.back() == std::this_thread::get_id();
  }
  CHECK(ran_here);
}

TEST_CASE("operations submitted in a burst are announced together") {
  EngineFixture fixture;
  fixture.HoldBack();
  // A coordinator thread that is starting up would take a part of them.
  REQUIRE(fixture.mesh->Await([&] { return fixture.mesh->sleeps > 0; }));
  for (int i = 0; i < 9; ++i) fixture.Submit(Barrier(Format("b{}", i)), true);
  Handle last = fixture.Submit(Barrier("last"), true);
  CHECK(last.WaitFor(milliseconds(0)).code() == StatusCode::kTimeout);
  REQUIRE(fixture.planner->Await([&] { return fixture.planner->submissions.size() == 10; }));
  const std::lock_guard lock(fixture.planner->mutex);
  CHECK(std::count(fixture.planner->log.begin(), fixture.planner->log.end(), 'f') == 1);
}

TEST_CASE("messages go out before anything runs") {
  EngineFixture fixture(2);
  fixture.backend->Block(true);
  fixture.planner->on_submit = [&](const plan::Submission& submission, plan::Effects& effects) {
    effects.run.push_back(fixture.planner->MakeBatch(submission, 0, 1));
    effects.send.push_back({1, {std::byte{'g'}, std::byte{'o'}}});
  };
  std::vector<float> values{1};
  std::thread waiter([&] { CHECK(fixture.Submit(Allreduce("x", values), true).Wait().ok()); });
  REQUIRE(fixture.backend->Await([&] { return fixture.backend->running == 1; }));
  {
    const std::lock_guard lock(fixture.mesh->mutex);
    REQUIRE(fixture.mesh->sent.size() == 1);
    CHECK(fixture.mesh->sent[0] == std::pair<int, std::string>(1, "go"));
  }
  fixture.backend->Block(false);
  waiter.join();
  const SessionCounters counters = fixture.engine->counters();
  CHECK(counters.control_frames_sent == 1);
  CHECK(counters.control_bytes_sent == 2);
}

TEST_CASE("an operation without a waiter runs on the engine's threads") {
  EngineFixture fixture;
  std::vector<float> values{1};
  const Handle handle = fixture.Submit(Allreduce("x", values));
  REQUIRE(fixture.backend->Await([&] { return fixture.backend->calls == 1; }));
  CHECK(fixture.backend->threads[0] != std::this_thread::get_id());
  CHECK(fixture.Outcome(handle).ok());
}

TEST_CASE("without spinning everything still gets done") {
  EngineFixture fixture(1, {.spin = Duration::zero()});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&fixture, t] {
      std::vector<float> values{1};
      for (int i = 0; i < 200; ++i) {
        const auto name = Format("{}.{}", t, i);
        CHECK(fixture.Submit(Allreduce(name, values), i % 2 == 0).Wait().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(fixture.backend->calls == 800);
}

TEST_CASE("a stall rule is due although nothing happens") {
  EngineFixture fixture;
  fixture.planner->on_submit = [&](const plan::Submission& submission, plan::Effects&) {
    fixture.planner->deadline = SteadyClock().Now() + milliseconds(20);
    fixture.planner->on_tick = [ticket = submission.ticket](TimePoint, plan::Effects& effects) {
      effects.finish.push_back({ticket, Status(StatusCode::kTimeout, "stalled")});
    };
  };
  std::vector<float> values{1};
  const bool caller_waits = GENERATE(false, true);
  CHECK(fixture.Submit(Allreduce("x", values), caller_waits).Wait().message() == "stalled");
}

TEST_CASE("a deadline that arises in a waiting thread reaches the sleeping coordinator thread") {
  EngineFixture fixture;
  REQUIRE(fixture.mesh->Await([&] { return fixture.mesh->sleeps > 0; }));
  fixture.planner->on_submit = [&](const plan::Submission&, plan::Effects&) {
    fixture.planner->deadline = SteadyClock().Now() + milliseconds(20);
  };
  std::vector<float> values{1};
  Handle handle = fixture.Submit(Allreduce("x", values), true);
  CHECK(handle.WaitFor(milliseconds(0)).code() == StatusCode::kTimeout);
  CHECK(
      fixture.planner->Await([&] { return fixture.planner->log.find('t') != std::string::npos; }));
}

TEST_CASE("a finished batch is reported at once while tensors gather, and later otherwise") {
  EngineFixture fixture;
  {
    const std::lock_guard lock(fixture.planner->mutex);
    fixture.planner->gathering = true;
  }
  std::vector<float> values{1};
  fixture.Submit(Allreduce("x", values));
  CHECK(fixture.planner->Await([&] { return fixture.planner->finished.size() == 1; }));
  {
    const std::lock_guard lock(fixture.planner->mutex);
    fixture.planner->gathering = false;
  }
  CHECK(fixture.Outcome(fixture.Submit(Allreduce("y", values))).ok());
  CHECK(fixture.Outcome(fixture.Submit(Allreduce("z", values))).ok());
  CHECK(fixture.planner->Await([&] { return fixture.planner->finished.size() >= 2; }));
  const std::lock_guard lock(fixture.planner->mutex);
  CHECK(fixture.planner->finished[0] == 1);
  CHECK(fixture.planner->finished[1] == 2);
}

TEST_CASE("a burst of submissions wakes the coordinator thread once per nap") {
  EngineFixture fixture;
  fixture.HoldBack();
  REQUIRE(fixture.mesh->Await([&] { return fixture.mesh->sleeps > 0; }));
  constexpr int kCount = 2000;
  std::vector<float> values{1};
  const TimePoint start = SteadyClock().Now();
  for (int i = 0; i < kCount; ++i) fixture.Submit(Allreduce(std::to_string(i), values));
  const auto naps = (SteadyClock().Now() - start) / std::chrono::microseconds(50);
  {
    const std::lock_guard lock(fixture.mesh->mutex);
    CHECK(fixture.mesh->wakes <= naps + 2);
  }
  CHECK(fixture.planner->Await([&] { return fixture.planner->submissions.size() == kCount; }));
}

TEST_CASE("nobody is woken for operations that can start nothing, until somebody asks") {
  EngineFixture fixture(2);
  REQUIRE(fixture.mesh->Await([&] { return fixture.mesh->sleeps == 1; }));
  const auto submitted = [&] {
    const std::lock_guard lock(fixture.planner->mutex);
    return fixture.planner->submissions.size();
  };
  {
    const std::lock_guard lock(fixture.planner->mutex);
    fixture.planner->needed = 3;
  }
  fixture.mesh->DeliverFrame(1);  // the engine asks the planner again
  REQUIRE(fixture.mesh->Await([&] { return fixture.mesh->sleeps == 2; }));

  std::vector<float> values{1};
  std::vector<Handle> handles{fixture.Submit(Allreduce("a", values))};
  handles.push_back(fixture.Submit(Allreduce("b", values)));
  CHECK_FALSE(handles[0].finished());
  CHECK(submitted() == 0);

  SECTION("enough have come") {
    handles.push_back(fixture.Submit(Allreduce("c", values)));
    CHECK(fixture.planner->Await([&] { return fixture.planner->submissions.size() == 3; }));
  }
  SECTION("a program that only asks gets an answer") {
    const TimePoint deadline = SteadyClock().Now() + kHangLimit;
    while (!handles[1].done() && SteadyClock().Now() < deadline) std::this_thread::yield();
    CHECK(handles[1].done());
  }
  SECTION("one that waits") { CHECK(handles[0].Wait().ok()); }
  for (Handle& handle : handles) CHECK(fixture.Outcome(handle).ok());
}

TEST_CASE("an idle engine uses no processor and looks at nothing") {
  EngineFixture fixture(2);
  std::vector<float> values{1};
  for (int i = 0; i < 20; ++i) {
    CHECK(fixture.Submit(Allreduce("x", values), i % 2 == 0).Wait().ok());
  }
  // One more message puts the coordinator thread to sleep for certain, whatever it did before.
  fixture.mesh->DeliverFrame(1);
  REQUIRE(
      fixture.planner->Await([&] { return fixture.planner->log.find('r') != std::string::npos; }));
  const int sleeps_before = [&] {
    const std::lock_guard lock(fixture.mesh->mutex);
    return fixture.mesh->sleeps;
  }();
  REQUIRE(fixture.mesh->Await([&] { return fixture.mesh->sleeps >= sleeps_before; }));
  int polls = 0;
  {
    const std::lock_guard lock(fixture.mesh->mutex);
    polls = fixture.mesh->polls;
  }
  // What is measured is a time, so this test has to let some pass.
  const double cpu_before = ProcessCpuSeconds();
  std::this_thread::sleep_for(milliseconds(1200));
  CHECK(ProcessCpuSeconds() - cpu_before < 0.012);
  const std::lock_guard lock(fixture.mesh->mutex);
  CHECK(fixture.mesh->polls - polls <= 1);
}

TEST_CASE("what the planner has to say is logged under its name") {
  const LogCapture log;
  EngineFixture fixture(1, {}, log.logger());
  fixture.planner->on_submit = [&](const plan::Submission& submission, plan::Effects& effects) {
    effects.notices.push_back({LogLevel::kWarning, "'x' is late"});
    effects.run.push_back(fixture.planner->MakeBatch(submission, 0, 1));
  };
  std::vector<float> values{1};
  CHECK(fixture.Submit(Allreduce("x", values)).Wait().ok());
  REQUIRE(fixture.planner->Await([&] { return fixture.planner->submissions.size() == 1; }));
  fixture.engine->Stop();
  CHECK(log.lines() == std::vector<std::string>{"[test] WARNING plan: 'x' is late"});
}

TEST_CASE("the timeline tells an operation's way with Horovod's names") {
  EngineFixture fixture;
  const auto sink = std::make_shared<RecordingSink>();
  fixture.planner->on_submit = [&](const plan::Submission& submission, plan::Effects& effects) {
    for (const int rank : {0, 1}) {
      effects.ready.push_back({OpKind::kAllreduce, submission.signature->name, rank});
    }
  };
  fixture.planner->on_receive = [&](plan::Effects& effects) {
    effects.run.push_back(fixture.planner->MakeBatch(fixture.planner->submissions.back(), 0, 1));
  };
  fixture.engine->SetTrace(sink, true);
  std::vector<float> values{1};
  const Handle traced = fixture.Submit(Allreduce("x", values));
  REQUIRE(fixture.planner->Await([&] { return fixture.planner->submissions.size() == 1; }));
  fixture.mesh->DeliverFrame(1);
  CHECK(fixture.Outcome(traced).ok());
  CHECK(sink->events() == std::vector<std::string>{"I  CYCLE_START", "B x NEGOTIATE_ALLREDUCE",
                                                   "I x rank 0 ready", "I x rank 1 ready", "E x",
                                                   "B x QUEUE", "E x", "B x ALLREDUCE",
                                                   "B x FAKE_ALLREDUCE", "E x", "E x"});

  // An operation that is under way when the timeline changes leaves no half events behind.
  const auto next_sink = std::make_shared<RecordingSink>();
  const Handle between = fixture.Submit(Allreduce("y", values));
  REQUIRE(fixture.planner->Await([&] { return fixture.planner->submissions.size() == 2; }));
  fixture.engine->SetTrace(nullptr, false);
  fixture.mesh->DeliverFrame(1);
  CHECK(fixture.Outcome(between).ok());
  fixture.engine->SetTrace(next_sink, false);
  CHECK(next_sink->events().empty());
}

}  // namespace
}  // namespace hvl::test
