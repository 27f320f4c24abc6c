// What the engine tells the launcher on its rank's page.
#include "tests/cpp/engine/fixture.h"
#include "tests/support/status_memory.h"

namespace hvl::test {
namespace {

/// One rank's engine with a page.
struct WatchedEngine {
  explicit WatchedEngine(int size = 1) : fixture(size, WithPage()) {}

  engine::Options WithPage() {
    page = StatusPage::Open(memory.fd());
    REQUIRE(page != nullptr);
    page->SetPhase(RankPhase::kRunning);
    engine::Options options;
    options.status = page.get();
    return options;
  }
  StatusReport Read() const { return memory.ReadNow(); }

  const StatusMemory memory;
  std::unique_ptr<StatusPage> page;
  EngineFixture fixture;
};

TEST_CASE("a batch that has run is the last completed, and nothing is in flight") {
  WatchedEngine engine;
  std::vector<float> values(16, 1);
  REQUIRE(engine.fixture.Outcome(engine.fixture.Submit(Allreduce("w", values))).ok());
  const StatusReport report = engine.Read();
  CHECK(report.completed.kind == "allreduce");
  CHECK(report.completed.name == "w");
  CHECK(report.completed.bytes == 64);
  CHECK(report.completed.sequence == 1);
  CHECK_FALSE(report.is_running);
  CHECK(report.in_flight == 0);
  CHECK(report.phase == RankPhase::kRunning);
  CHECK(report.beat_age_ns >= 0);
}

TEST_CASE("a batch on the data plane is running") {
  WatchedEngine engine;
  engine.fixture.backend->Block(true);
  std::vector<float> values(16, 1);
  Handle handle = engine.fixture.Submit(Allreduce("w", values));
  REQUIRE(engine.fixture.backend->Await([&] { return engine.fixture.backend->running == 1; }));
  const StatusReport report = engine.Read();
  CHECK(report.is_running);
  CHECK(report.started.name == "w");
  CHECK(report.completed.kind.empty());
  CHECK(report.in_flight == 1);
  engine.fixture.backend->Block(false);
  REQUIRE(engine.fixture.Outcome(handle).ok());
}

TEST_CASE("what the other ranks have not submitted is in flight and in no batch") {
  WatchedEngine engine(2);
  engine.fixture.HoldBack();
  std::vector<float> values(16, 1);
  engine.fixture.Submit(Allreduce("w", values));
  REQUIRE(engine.fixture.planner->Await(
      [&] { return engine.fixture.planner->submissions.size() == 1; }));
  const StatusReport report = engine.Read();
  CHECK(report.in_flight == 1);
  CHECK(report.submitted.name == "w");
  CHECK(report.started.kind.empty());
}

TEST_CASE("a lost rank is told before any operation fails because of it") {
  WatchedEngine engine(3);
  engine.fixture.HoldBack();
  std::vector<float> values(16, 1);
  Handle handle = engine.fixture.Submit(Allreduce("w", values));
  engine.fixture.mesh->LosePeer(1, "rank 1 was killed by signal 9");
  REQUIRE_FALSE(engine.fixture.Outcome(handle).ok());
  const StatusReport report = engine.Read();
  CHECK(report.phase == RankPhase::kPeerLost);
  CHECK(report.peer == 1);
  CHECK(report.text == "rank 1 was killed by signal 9");
  CHECK(report.in_flight == 1);
  engine.fixture.engine->Stop();
  CHECK(engine.Read().phase == RankPhase::kPeerLost);
}

TEST_CASE("a failure of this rank is its own") {
  WatchedEngine engine(2);
  engine.fixture.backend->fails = Status(StatusCode::kResourceExhausted, "no memory");
  std::vector<float> values(16, 1);
  REQUIRE_FALSE(engine.fixture.Outcome(engine.fixture.Submit(Allreduce("w", values))).ok());
  const StatusReport report = engine.Read();
  CHECK(report.phase == RankPhase::kLocalError);
  CHECK(report.text == "ResourceExhausted: no memory");
  CHECK(report.is_running);
  CHECK(report.started.name == "w");
}

TEST_CASE("a shutdown is an end in order") {
  WatchedEngine engine;
  engine.fixture.engine->Stop();
  CHECK(engine.Read().phase == RankPhase::kFinished);
}

}  // namespace
}  // namespace hvl::test
