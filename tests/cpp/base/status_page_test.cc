// A rank's status page: what is written is read, by a reader who trusts nothing.
#include "csrc/base/status_page.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include "tests/support/status_memory.h"

namespace hvl {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kLater = TimePoint{} + 1h;

/// A note whose parts tell whether they belong together.
struct NumberedNote {
  explicit NumberedNote(std::uint64_t number)
      : name(60, static_cast<char>('a' + number % 26)),
        note{.kind = "allreduce",
             .name = name,
             .bytes = 3 * number,
             .sequence = number,
             .since = TimePoint{} + 1s} {}

  std::string name;
  OperationNote note;
};

bool IsWhole(const OperationReport& report) {
  return report.kind == "allreduce" && report.bytes == 3 * report.sequence &&
         report.name == NumberedNote(report.sequence).name;
}

TEST_CASE("a page that no session has used says nothing") {
  const test::StatusMemory page;
  CHECK(page.Read(kLater) == StatusReport());
}

TEST_CASE("what a rank does is read from outside, also when the rank is gone") {
  const test::StatusMemory page;
  std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
  REQUIRE(rank != nullptr);
  CHECK(page.Read(kLater).phase == RankPhase::kJoining);
  rank->SetPhase(RankPhase::kRunning);
  rank->Beat(TimePoint{} + 10s);
  rank->NoteSubmitted({.kind = "broadcast", .name = "state", .since = TimePoint{} + 9s}, 3);
  rank->NoteStarted({.kind = "allreduce",
                     .name = "w",
                     .process_set = 2,
                     .operations = 5,
                     .bytes = 4096,
                     .sequence = 17,
                     .plan = 1,
                     .step = 4,
                     .bucket = 2,
                     .buckets = 3,
                     .since = TimePoint{} + 8s},
                    true);
  StatusReport report = page.Read(TimePoint{} + 12s);
  CHECK(report.phase == RankPhase::kRunning);
  CHECK(report.beat_age_ns == 2'000'000'000);
  CHECK(report.in_flight == 3);
  CHECK(report.submitted.kind == "broadcast");
  CHECK(report.submitted.age_ns == 3'000'000'000);
  CHECK((report.is_running && report.at_gate));
  const OperationReport expected{.kind = "allreduce",
                                 .name = "w",
                                 .process_set = 2,
                                 .operations = 5,
                                 .bytes = 4096,
                                 .sequence = 17,
                                 .plan = 1,
                                 .step = 4,
                                 .bucket = 2,
                                 .buckets = 3,
                                 .age_ns = 4'000'000'000};
  CHECK(report.started == expected);
  CHECK(report.completed == OperationReport());
  rank->NotePassedGate();
  report = page.Read(TimePoint{} + 12s);
  CHECK((report.is_running && !report.at_gate));
  rank->NoteCompleted();
  rank->NoteFinished(2);
  rank->NoteDropped(1);
  rank->SetPhase(RankPhase::kFinished);
  rank.reset();
  report = page.Read(TimePoint{} + 12s);
  CHECK(report.phase == RankPhase::kFinished);
  CHECK_FALSE(report.is_running);
  CHECK(report.completed == expected);
  CHECK(report.in_flight == 0);
}

TEST_CASE("while a batch runs the one before it is known, withdrawn ones between them are not") {
  const test::StatusMemory page;
  const std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
  rank->NoteStarted(NumberedNote(1).note, false);
  rank->NoteCompleted();
  for (const std::uint64_t number : {2, 3, 4}) {
    rank->NoteStarted(NumberedNote(number).note, true);
    CHECK(page.Read(kLater).started.sequence == number);
    CHECK(page.Read(kLater).completed.sequence == 1);
    rank->NoteWithdrawn();
    CHECK_FALSE(page.Read(kLater).is_running);
  }
  rank->NoteStarted(NumberedNote(5).note, false);
  CHECK(page.Read(kLater).completed.sequence == 1);
  rank->NoteCompleted();
  CHECK(page.Read(kLater).completed.sequence == 5);
}

TEST_CASE("the first cause of an end is kept") {
  const test::StatusMemory page;
  const std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
  rank->SetPhase(RankPhase::kRunning);
  rank->SetPhase(RankPhase::kPeerLost, 3, "rank 3 was killed");
  rank->SetPhase(RankPhase::kFinished);
  const StatusReport report = page.Read(kLater);
  CHECK(report.phase == RankPhase::kPeerLost);
  CHECK(report.peer == 3);
  CHECK(report.text == "rank 3 was killed");
}

TEST_CASE("what was in flight when a session ended is told, although the end ended it") {
  const test::StatusMemory page;
  const std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
  rank->SetPhase(RankPhase::kRunning);
  rank->NoteSubmitted({.kind = "allreduce", .name = "w"}, 3);
  rank->NoteStarted({.kind = "allreduce", .name = "v"}, false);
  rank->SetPhase(RankPhase::kPeerLost, 3, "rank 3 was killed");
  rank->NoteDropped(3);
  const StatusReport report = page.Read(SteadyClock().Now());
  CHECK(report.in_flight == 3);
  CHECK(report.is_running);
  CHECK(report.phase_age_ns >= 0);
}

TEST_CASE("a new session of the same process begins with a clean page") {
  const test::StatusMemory page;
  std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
  rank->NoteStarted(NumberedNote(1).note, false);
  rank->NoteSubmitted(NumberedNote(1).note, 9);
  rank->SetPhase(RankPhase::kLocalError, -1, "no memory");
  rank.reset();
  rank = StatusPage::Open(page.fd());
  REQUIRE(rank != nullptr);
  StatusReport report = page.Read(kLater);
  CHECK(report.beat_age_ns >= -1);
  CHECK(report.phase_age_ns >= -1);
  report.beat_age_ns = -1;
  report.phase_age_ns = -1;
  StatusReport clean;
  clean.phase = RankPhase::kJoining;
  CHECK(report == clean);
}

TEST_CASE("a page has one writer, until that has left it or died") {
  const test::StatusMemory page;
  std::unique_ptr<StatusPage> first = StatusPage::Open(page.fd());
  REQUIRE(first != nullptr);
  CHECK(StatusPage::Open(page.fd()) == nullptr);
  first.reset();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto* const kept = StatusPage::Open(page.fd()).release();
    ::_exit(kept != nullptr ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  CHECK(StatusPage::Open(page.fd()) != nullptr);
}

TEST_CASE("a child that forked from a rank does not give up the rank's page") {
  const test::StatusMemory page;
  std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    rank.reset();
    ::_exit(0);
  }
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(StatusPage::Open(page.fd()) == nullptr);
}

TEST_CASE("programs that a rank starts do not inherit its page") {
  const test::StatusMemory page;
  const std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
  CHECK(::fcntl(page.fd(), F_GETFD) == FD_CLOEXEC);
}

TEST_CASE("a descriptor that is no page of this version is left alone") {
  CHECK(StatusPage::Open(-1) == nullptr);
  CHECK(StatusPage::Open(1'000'000) == nullptr);
  CHECK(StatusPage::Open(STDERR_FILENO) == nullptr);
  const test::StatusMemory not_sealed(0);
  CHECK(StatusPage::Open(not_sealed.fd()) == nullptr);
  const test::StatusMemory too_short(StatusPageSeals(), 100);
  CHECK(StatusPage::Open(too_short.fd()) == nullptr);
  const test::StatusMemory foreign;
  static_cast<status_page::Layout*>(foreign.memory())->magic.store(7);
  CHECK(StatusPage::Open(foreign.fd()) == nullptr);
  CHECK(::fcntl(foreign.fd(), F_GETFD) == 0);
}

TEST_CASE("texts are cut, end at a zero, and cannot command a terminal") {
  const test::StatusMemory page;
  const std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
  rank->NoteStarted({.kind = "a-kind-that-is-much-too-long",
                     .name = std::string("\x1b[2J\r\n\x07\xc2\x9b") + std::string(500, 'x')},
                    false);
  rank->SetPhase(RankPhase::kLocalError, -1, std::string_view("seen\0unseen", 11));
  const StatusReport report = page.Read(kLater);
  CHECK(report.started.kind == "a-kind-that-is-m");
  CHECK(report.started.name == "?[2J?????" + std::string(71, 'x'));
  CHECK(report.text == "seen");
}

TEST_CASE("a time that has not come is no age") {
  const test::StatusMemory page;
  const std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
  rank->Beat(TimePoint{} + 100s);
  CHECK(page.Read(TimePoint{} + 50s).beat_age_ns == -1);
  CHECK(page.Read(TimePoint{} + 100s - 1us).beat_age_ns == 0);  // written while it was read
}

TEST_CASE("any bytes give some report") {
  const std::uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const test::StatusMemory page;
  auto* const words = static_cast<std::uint64_t*>(page.memory());
  for (int round = 0; round < 3000; ++round) {
    for (std::size_t i = 0; i < kStatusPageBytes / sizeof *words; ++i) {
      const std::uint64_t word = random();
      // Small numbers more often than chance has them: they look like a page.
      words[i] = word % 4 == 0 ? word : word >> 61;
    }
    const StatusReport report = page.Read(kLater);
    for (const OperationReport* each : {&report.submitted, &report.started, &report.completed}) {
      REQUIRE(each->kind.size() <= 16);
      REQUIRE(each->name.size() <= 80);
      REQUIRE(each->age_ns >= -1);
      const std::string texts = each->kind + each->name + report.text;
      REQUIRE(std::all_of(texts.begin(), texts.end(), [](char c) { return c >= ' ' && c <= '~'; }));
    }
    REQUIRE(report.phase <= RankPhase::kPeerLeft);
    REQUIRE(report.beat_age_ns >= -1);
  }
}

TEST_CASE("a reader sees whole batches while a rank writes others") {
  const test::StatusMemory page;
  const std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t number = 1; !stop.load(); ++number) {
      const NumberedNote numbered(number);
      rank->NoteSubmitted(numbered.note, 1);
      rank->NoteStarted(numbered.note, number % 2 == 0);
      if (number % 3 == 0) {
        rank->NoteWithdrawn();
      } else {
        rank->NoteCompleted();
      }
    }
  });
  int seen = 0, torn = 0;
  for (std::uint64_t reads = 0; seen < 20000 && reads < 10'000'000; ++reads) {
    const StatusReport report = page.Read(kLater);
    for (const OperationReport* each : {&report.submitted, &report.started, &report.completed}) {
      if (each->kind.empty()) continue;  // it was being written over
      ++seen;
      if (!IsWhole(*each)) ++torn;
    }
  }
  stop.store(true);
  writer.join();
  CHECK(seen >= 20000);
  CHECK(torn == 0);
}

TEST_CASE("a rank that is killed in the middle of a write leaves something whole") {
  for (int round = 0; round < 30; ++round) {
    const test::StatusMemory page;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const std::unique_ptr<StatusPage> rank = StatusPage::Open(page.fd());
      for (std::uint64_t number = 1;; ++number) {
        rank->NoteStarted(NumberedNote(number).note, false);
        rank->NoteCompleted();
      }
    }
    while (page.Read(kLater).started.sequence < 100) std::this_thread::yield();
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    const StatusReport report = page.Read(kLater);
    CHECK(IsWhole(report.started));
    CHECK(IsWhole(report.completed));
    CHECK(report.completed.sequence + 1 >= report.started.sequence);
  }
}

}  // namespace
}  // namespace hvl
