// One rank's engine with doubles around it, for the tests of this folder.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/engine.h"
#include "tests/support/engine_doubles.h"
#include "tests/support/operations.h"

namespace hvl::test {

struct EngineFixture {
  explicit EngineFixture(int size = 1, engine::Options options = {}, Logger logger = {}) {
    auto started = engine::Engine::Start(
        options, std::make_unique<FakeMesh>(0, size, mesh), std::make_unique<FakePlanner>(planner),
        std::make_unique<FakeBackend>(backend), std::move(logger), SteadyClock());
    REQUIRE(started.ok());
    engine = std::move(started).value();
  }

  /// Submits and expects success.
  Handle Submit(Operation operation, bool caller_waits = false) {
    auto handle = engine->Submit(std::move(operation), caller_waits);
    REQUIRE(handle.status() == Status::Ok());
    return *handle;
  }
  /// What the waiter gets who has all the time a hang takes.
  Status Outcome(Handle handle) { return handle.WaitFor(kHangLimit); }
  /// The error of a submission that is refused.
  Status Refusal(Operation operation) {
    return engine->Submit(std::move(operation), false).status();
  }
  /// From now on submissions stay with the planner.
  void HoldBack() {
    planner->on_submit = [](const plan::Submission&, plan::Effects&) {};
  }

  const std::shared_ptr<FakeMesh::Control> mesh = std::make_shared<FakeMesh::Control>();
  const std::shared_ptr<FakePlanner::Control> planner = std::make_shared<FakePlanner::Control>();
  const std::shared_ptr<FakeBackend::Control> backend = std::make_shared<FakeBackend::Control>();
  std::unique_ptr<engine::Engine> engine;
};

inline Operation Barrier(std::string name = {}) {
  Operation operation;
  operation.kind = OpKind::kBarrier;
  operation.name = std::move(name);
  return operation;
}

}  // namespace hvl::test
