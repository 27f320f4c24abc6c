// Beginning, resting, forking and ending: nothing grows, nothing runs while there is nothing to do.
#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <thread>

#include "csrc/base/str.h"
#include "tests/support/log_capture.h"
#include "tests/support/process_usage.h"
#include "tests/support/processes.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_file.h"

namespace hvl::test {
namespace {

using Catch::Contains;
using std::chrono::milliseconds;

Status RunSum(Session& session, const std::string& name, float& value) {
  Operation operation;
  operation.name = name;
  operation.reduce_op = ReduceOp::kSum;
  operation.tensors = {{.input = &value, .output = &value, .shape = {}}};
  return session.Run(std::move(operation));
}

/// What has grown since `before`; empty = nothing.
std::string Growth(const ProcessUsage& before) {
  constexpr std::size_t kNoise = std::size_t{4} << 20;
  const ProcessUsage now = ProcessUsage::Now();
  if (now.threads != before.threads) return Format("{} threads", now.threads - before.threads);
  if (now.descriptors != before.descriptors) {
    return Format("{} descriptors", now.descriptors - before.descriptors);
  }
  // With a sanitizer memory grows by itself.
  if (!kSanitized && now.resident_bytes > before.resident_bytes + kNoise) {
    return Format("{} bytes", now.resident_bytes - before.resident_bytes);
  }
  return {};
}

TEST_CASE("a hundred worlds one after the other leave nothing behind in a process") {
  const std::string plane = GENERATE("local", "tcp");
  CAPTURE(plane);
  ProcessUsage before;
  std::uint64_t last_generation = 0;
  net::MemoryStore store;
  for (int i = 0; i < 100; ++i) {
    const auto sums = RunRanks(2, [&](int rank) -> Complaint {
      auto session = StartRank(rank, 2, &store, {{"HVL_CPU_OPERATIONS", plane}});
      if (!session.ok()) return session.status().ToString();
      float value = 1;
      if (Status status = RunSum(**session, "x", value); !status.ok()) return status.ToString();
      if (rank == 0) {
        if ((*session)->world().generation <= last_generation) return "the generation stays";
        last_generation = (*session)->world().generation;
      }
      return value == 2 ? Complaint() : "wrong sum";
    });
    REQUIRE(sums == std::vector<Complaint>(2));
    if (i == 10) before = ProcessUsage::Now();  // by now everything that is kept is there
  }
  CHECK(Growth(before) == "");
}

TEST_CASE("a hundred sessions of one job leave nothing behind in its processes") {
  // One session is there from the start; the body makes the others as a re-initialising script
  // does.
  ProcessWorld world(2, {}, [](int rank, auto& session, const Reporter& reporter) {
    ProcessUsage before;
    for (int i = 0; i < 100; ++i) {
      float value = 1;
      const Status status = RunSum(*session, "x", value);
      if (!status.ok() || value != 2) {
        reporter.Say(Format("{}: {} {}", i, value, status.ToString()));
        return 1;
      }
      session.reset();
      if (i == 10) before = ProcessUsage::Now();
      if (i == 99) break;
      auto again = Session::Create();
      if (!again.ok()) {
        reporter.Say(again.status().ToString());
        return 1;
      }
      session = std::move(again).value();
      if (session->world().rank != rank) return 1;
    }
    reporter.Say(Growth(before).empty() ? "nothing grew" : Growth(before));
    return 0;
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(world.Listen(rank) == "nothing grew");
    CHECK(world.ExitStatus(rank) == 0);
  }
}

TEST_CASE("a script without a launcher is a world of one") {
  auto session = Session::Create();
  REQUIRE(session.status() == Status::Ok());
  CHECK((*session)->world().size == 1);
  float value = 3;
  CHECK(RunSum(**session, "x", value).ok());
  CHECK(value == 3);
  CHECK((*session)->counters().control_frames_sent == 0);
}

TEST_CASE("an idle world uses no processor and sends nothing") {
  const std::string plane = GENERATE("local", "tcp");
  CAPTURE(plane);
  net::MemoryStore store;
  std::vector<std::unique_ptr<Session>> sessions(2);
  const auto complaints = RunRanks(2, [&](int rank) -> Complaint {
    auto session = StartRank(rank, 2, &store, {{"HVL_CPU_OPERATIONS", plane}});
    if (!session.ok()) return session.status().ToString();
    sessions[static_cast<std::size_t>(rank)] = std::move(session).value();
    float value = 1;
    for (int i = 0; i < 20; ++i) {
      const Status status =
          RunSum(*sessions[static_cast<std::size_t>(rank)], Format("x{}", i % 3), value);
      if (!status.ok()) return status.ToString();
    }
    return {};
  });
  REQUIRE(complaints == std::vector<Complaint>(2));
  // What is measured is a time, so this test has to let some pass: first until the threads sleep.
  std::this_thread::sleep_for(milliseconds(100));
  const SessionCounters before = sessions[0]->counters();
  const double cpu_before = ProcessCpuSeconds();
  std::this_thread::sleep_for(milliseconds(2000));
  CHECK(ProcessCpuSeconds() - cpu_before < 0.004);  // 0.1 % of a core for each rank
  const SessionCounters after = sessions[0]->counters();
  CHECK(after.control_frames_sent == before.control_frames_sent);
  CHECK(after.control_frames_received == before.control_frames_received);
  CHECK(after.operations_completed == 20);
  CHECK(after.bytes_reduced == 20 * sizeof(float));
}

TEST_CASE("a forked child cannot use the session, and does not disturb it by ending") {
  ProcessWorld world(2, {}, [](int, auto& session, const Reporter& reporter) {
    float value = 1;
    if (!RunSum(*session, "x", value).ok()) return 1;
    const pid_t child = ::fork();
    if (child == 0) {
      const Status status = RunSum(*session, "y", value);
      const bool clear = status.message().find("call init() after fork") != std::string::npos;
      const bool refused = !session->StartTimeline("/nonexistent", false).ok() &&
                           !session->Allocate(8).ok() && !session->health().ok();
      session->Shutdown();
      session.reset();
      std::exit(clear && refused ? 0 : 1);  // runs the destructors of the process as well
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) return 1;
    value = 1;
    const Status after = RunSum(*session, "z", value);
    reporter.Say(after.ok() && value == 2 ? "goes on" : after.ToString());
    return 0;
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(world.Listen(rank) == "goes on");
    CHECK(world.ExitStatus(rank) == 0);
  }
}

TEST_CASE("a session that was never ended does not keep the process from exiting") {
  ProcessWorld world(2, {}, [](int, auto& session, const Reporter&) {
    float value = 1;
    if (!RunSum(*session, "x", value).ok()) return 1;
    // As a global object, and destroyed by exit() like one.
    static std::unique_ptr<Session> forgotten;
    forgotten = std::move(session);
    std::exit(0);
  });
  CHECK(world.ExitStatus(0) == 0);
  CHECK(world.ExitStatus(1) == 0);
}

nlohmann::json JsonOf(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
}

/// Whether the timeline has an event of that name.
bool HasEvent(const nlohmann::json& timeline, const std::string& name) {
  return std::any_of(timeline.begin(), timeline.end(), [&name](const nlohmann::json& event) {
    return event.value("name", "") == name;
  });
}

TEST_CASE("HVL_TIMELINE makes rank 0 write a timeline with every rank's readiness") {
  const TemporaryFile file;
  const Knobs knobs{{"HVL_TIMELINE", file.path()}, {"HVL_TIMELINE_MARK_CYCLES", "1"}};
  const auto results = RunWorld(2, knobs, [](Session& session) -> Complaint {
    float value = 1;
    const Status status = RunSum(session, "gradient", value);
    session.Shutdown();  // closes the timeline
    return status.ok() ? Complaint() : status.ToString();
  });
  REQUIRE(FirstComplaint(results) == "");
  const nlohmann::json timeline = JsonOf(file.path());
  REQUIRE(timeline.is_array());
  for (const std::string name : {"NEGOTIATE_ALLREDUCE", "rank 0 ready", "rank 1 ready", "QUEUE",
                                 "ALLREDUCE", "CYCLE_START"}) {
    CAPTURE(name);
    CHECK(HasEvent(timeline, name));
  }
}

TEST_CASE("a timeline may be started and stopped at any time, on any rank") {
  const TemporaryFile file;
  const auto results =
      RunWorld(2, {{"HVL_TIMELINE", "DYNAMIC"}}, [&file](Session& session) -> Complaint {
        float value = 1;
        Status status = RunSum(session, "before", value);
        if (session.world().rank == 1) {
          if (status = session.StartTimeline(file.path(), false); !status.ok()) {
            return status.ToString();
          }
        }
        if (status = RunSum(session, "during", value); !status.ok()) return status.ToString();
        if (status = session.StopTimeline(); !status.ok()) return status.ToString();
        if (session.world().rank == 1 &&
            JsonOf(file.path()).dump().find("during") == std::string::npos) {
          return "the file is not complete when StopTimeline returns";
        }
        if (status = RunSum(session, "after", value); !status.ok()) return status.ToString();
        return session.StartTimeline("/nonexistent/timeline", false).ok() ? "no error"
                                                                          : Complaint();
      });
  REQUIRE(FirstComplaint(results) == "");
  const std::string text = JsonOf(file.path()).dump();
  CHECK_THAT(text, Contains("during") && !Contains("before") && !Contains("after"));
}

TEST_CASE("a timeline that cannot be written does not keep a run from starting") {
  const auto log = std::make_shared<LogCapture>();
  auto session = StartRank(0, 1, nullptr, {{"HVL_TIMELINE", "/nonexistent/timeline"}}, log->sink());
  REQUIRE(session.ok());
  CHECK(log->Contains("/nonexistent/timeline"));
}

}  // namespace
}  // namespace hvl::test
