// ChromeTimeline: what stands in the file, when, and after a crash. Files are read back by a real
// JSON parser. The 20 ms for which the writer gathers events are waited for, never assumed.
#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/trace/trace.h"
#include "tests/cpp/trace/trace_file.h"

namespace hvl::trace {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

TimePoint Now() { return SteadyClock().Now(); }

std::unique_ptr<ChromeTimeline> MustOpen(const std::string& path, int rank = 0) {
  auto timeline = ChromeTimeline::Open(path, rank, Now());
  INFO(timeline.status().ToString());
  REQUIRE(timeline.ok());
  return std::move(timeline).value();
}

/// Reads the file until `done(events)`. A reading that overlaps a write may see half of it.
template <typename Done>
json WaitForFile(const std::string& path, Done done) {
  const TimePoint deadline = Now() + seconds(60);
  for (;;) {
    json events = json::parse(ReadFile(path), nullptr, false);
    if (events.is_array() && done(events)) return events;
    REQUIRE(Now() < deadline);
    ::poll(nullptr, 0, 1);
  }
}

/// Checks that begins and ends of each row are balanced or still open; returns their number.
std::size_t CheckNesting(const json& events) {
  std::map<int, int> open;
  std::size_t count = 0;
  for (const json& event : events) {
    const std::string phase = event["ph"];
    if (phase != "B" && phase != "E") continue;
    int& depth = open[event["pid"].get<int>()];
    depth += phase == "B" ? 1 : -1;
    CHECK(depth >= 0);
    ++count;
  }
  return count;
}

std::uint64_t DroppedIn(const json& events) {
  std::uint64_t dropped = 0;
  for (const json& event : events) {
    if (event.value("name", "") == "DROPPED_EVENTS") {
      dropped += event["args"]["count"].get<std::uint64_t>();
    }
  }
  return dropped;
}

TEST_CASE("a file in which nothing happened is complete at once and after closing") {
  const ScratchDir dir;
  auto timeline = MustOpen(dir / "t.json", 5);
  const json at_once = ParseFile(dir / "t.json");
  CHECK(at_once.size() == 2);
  CHECK(at_once[0]["args"]["name"] == "rank 5");
  timeline.reset();
  CHECK(ParseFile(dir / "t.json") == at_once);
}

TEST_CASE("events appear while the timeline is still open") {
  const ScratchDir dir;
  const auto timeline = MustOpen(dir / "t.json");
  timeline->Begin("allreduce.w", "NEGOTIATE_ALLREDUCE", Now());
  timeline->Instant("allreduce.w", "0", Now());
  const json events = WaitForFile(dir / "t.json", [](const json& e) { return e.size() == 6; });
  CHECK(events[4]["name"] == "NEGOTIATE_ALLREDUCE");
  timeline->End("allreduce.w", Now());
  WaitForFile(dir / "t.json", [](const json& e) { return e.size() == 7; });
}

TEST_CASE("closing writes what is queued, in the order of the calls") {
  const ScratchDir dir;
  const auto timeline = MustOpen(dir / "t.json");
  for (int i = 0; i < 1000; ++i) timeline->Instant("", Format("mark {}", i), Now());
  REQUIRE(timeline->Close().ok());
  const json events = ParseFile(dir / "t.json");
  REQUIRE(events.size() == 1002);
  for (std::size_t i = 0; i < 1000; ++i) CHECK(events[i + 2]["name"] == Format("mark {}", i));
}

TEST_CASE("after closing, events are ignored and closing again is fine") {
  const ScratchDir dir;
  const auto timeline = MustOpen(dir / "t.json");
  REQUIRE(timeline->Close().ok());
  const std::string before = ReadFile(dir / "t.json");
  timeline->Begin("t", "ALLREDUCE", Now());
  CHECK(timeline->Close().ok());
  CHECK(ReadFile(dir / "t.json") == before);
}

TEST_CASE("a path that cannot be written is Unavailable and names the path") {
  const auto timeline = ChromeTimeline::Open("/no/such/dir/t.json", 0, Now());
  REQUIRE_FALSE(timeline.ok());
  CHECK(timeline.status().code() == StatusCode::kUnavailable);
  CHECK_THAT(timeline.status().message(), Catch::Contains("/no/such/dir/t.json"));
}

TEST_CASE("threads may record at once; each row stays nested") {
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  const ScratchDir dir;
  const auto timeline = MustOpen(dir / "t.json");
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([thread, &timeline] {
        const std::string tensor = Format("tensor.{}", thread);
        for (int round = 0; round < kRounds; ++round) {
          timeline->Begin(tensor, "ALLREDUCE", Now());
          timeline->Begin(tensor, "LOCAL_ALLREDUCE", Now());
          timeline->End(tensor, Now());
          timeline->End(tensor, Now());
        }
      });
    }
  }
  REQUIRE(timeline->Close().ok());
  const json events = ParseFile(dir / "t.json");
  CHECK(CheckNesting(events) + DroppedIn(events) >= std::size_t{kThreads} * kRounds * 4);
}

TEST_CASE("a flood is bounded: what is dropped is counted in the file") {
  // 64 MiB at once, where two buffers of 4 MiB wait for the writer.
  const ScratchDir dir;
  const auto timeline = MustOpen(dir / "t.json");
  const std::string name(64 << 10, 'n');
  constexpr std::uint64_t kEvents = 1000;
  for (std::uint64_t i = 0; i < kEvents; ++i) timeline->Instant("", name, Now());
  REQUIRE(timeline->Close().ok());
  const json events = ParseFile(dir / "t.json");
  std::uint64_t written = 0;
  for (const json& event : events) {
    written += event.value("name", "").starts_with("nnn") ? 1U : 0U;
  }
  CHECK(written + DroppedIn(events) == kEvents);
}

TEST_CASE("an event larger than the queue is dropped, counted, and does no harm") {
  const ScratchDir dir;
  const auto timeline = MustOpen(dir / "t.json");
  timeline->Begin(std::string(ChromeTimeline::kQueueBytes, 't'), "ALLREDUCE", Now());
  REQUIRE(timeline->Close().ok());
  CHECK(DroppedIn(ParseFile(dir / "t.json")) == 1);
}

TEST_CASE("an idle timeline uses no processor time") {
  const ScratchDir dir;
  const auto timeline = MustOpen(dir / "t.json");
  timeline->Instant("", "mark", Now());
  WaitForFile(dir / "t.json", [](const json& e) { return e.size() == 3; });
  const auto process_time = [] {
    timespec used{};
    REQUIRE(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0);
    return seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  };
  const auto before = process_time();
  ::poll(nullptr, 0, 300);
  CHECK(process_time() - before < milliseconds(30));
}

/// Records without end until it is killed. Runs in a forked child.
[[noreturn]] void RecordForever(const std::string& path) {
  auto timeline = ChromeTimeline::Open(path, 0, Now());
  HVL_CHECK(timeline.ok(), timeline.status().ToString());
  for (int i = 0;; ++i) {
    const std::string tensor = Format("allreduce.layer.{}.weight", i % 100);
    (*timeline)->Begin(tensor, "ALLREDUCE", Now());
    (*timeline)->Instant(tensor, "0", Now());
    (*timeline)->End(tensor, Now());
    if (i % 1000 == 0) ::poll(nullptr, 0, 1);  // so that the queue is emptied now and then
  }
}

TEST_CASE("after kill -9 in the middle of writing the file is complete JSON") {
  for (int round = 0; round < 50; ++round) {
    const ScratchDir dir;
    const std::string path = dir / "t.json";
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) RecordForever(path);
    const TimePoint deadline = Now() + seconds(60);
    const std::uintmax_t enough = 3000 + 7919 * static_cast<std::uintmax_t>(round);
    for (std::error_code error; Now() < deadline;) {
      const std::uintmax_t bytes = std::filesystem::file_size(path, error);
      if (!error && bytes > enough) break;
    }
    REQUIRE(::kill(child, SIGKILL) == 0);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    const json events = ParseFile(path);
    CHECK(CheckNesting(events) > 10);
  }
}

}  // namespace
}  // namespace hvl::trace
