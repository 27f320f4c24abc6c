// What a status page says, in words.
#include "launcher/rank_report.h"

#include <catch2/catch.hpp>

namespace hvl::launcher {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

OperationReport Allreduce() {
  return {.kind = "allreduce",
          .name = "w",
          .process_set = 0,
          .operations = 1,
          .bytes = 64 << 20,
          .sequence = 7,
          .plan = 0,
          .step = 0,
          .bucket = 0,
          .buckets = 0,
          .age_ns = 3 * kSecond};
}

StatusReport Running() {
  StatusReport report;
  report.phase = RankPhase::kRunning;
  report.beat_age_ns = kSecond / 5;
  report.in_flight = 1;
  report.is_running = true;
  report.started = Allreduce();
  return report;
}

StatusReport InPhase(RankPhase phase, int peer = -1, std::string text = {}) {
  StatusReport report;
  report.phase = phase;
  report.peer = peer;
  report.text = std::move(text);
  return report;
}

TEST_CASE("the operation that a rank was in is told with its heartbeat") {
  CHECK(LastOperation(Running()) ==
        "last op: allreduce 'w' (batch 7, 64.0 MiB), running for 3.0 s; heartbeat 0.2 s before");
}

TEST_CASE("a bucket of a frozen plan is told with its step, and that it waits at its gate") {
  StatusReport report = Running();
  report.at_gate = true;
  report.started.operations = 12;
  report.started.plan = 2;
  report.started.step = 1812;
  report.started.bucket = 7;
  report.started.buckets = 12;
  CHECK(LastOperation(report) ==
        "last op: allreduce 'w' and 11 more (batch 7, 64.0 MiB; plan 2, step 1812, bucket 7 of "
        "12), waiting for the other ranks to start it for 3.0 s; heartbeat 0.2 s before");
}

TEST_CASE("a rank with nothing to do is not accused of silence") {
  StatusReport report = Running();
  report.is_running = false;
  report.in_flight = 0;
  report.completed = Allreduce();
  report.completed.process_set = 3;
  report.beat_age_ns = 50 * kSecond;
  CHECK(LastOperation(report) ==
        "last op: allreduce 'w' (batch 7, 64.0 MiB, process set 3), done; nothing in flight, last "
        "heartbeat 50.0 s before");
}

TEST_CASE("what was submitted and never started is told") {
  StatusReport report = Running();
  report.is_running = false;
  report.in_flight = 3;
  report.submitted = Allreduce();
  report.submitted.name = std::string("x");
  report.completed = Allreduce();
  report.completed.bytes = 0;
  CHECK(LastOperation(report) ==
        "last op: allreduce 'w' (batch 7), done; allreduce 'x' and 2 more submitted, not started; "
        "heartbeat 0.2 s before");
}

TEST_CASE("a rank without a runtime has no last operation, one in init() says so") {
  CHECK(LastOperation({}).empty());
  CHECK(OwnError({}).empty());
  CHECK(LastOperation(InPhase(RankPhase::kJoining)) == "last op: none, in init()");
  CHECK(OwnError(InPhase(RankPhase::kJoining, -1, "Mismatch: sizes differ")) ==
        "init() failed: Mismatch: sizes differ");
  CHECK(OwnError(InPhase(RankPhase::kLocalError, -1, "ResourceExhausted: no memory")) ==
        "its runtime failed: ResourceExhausted: no memory");
  CHECK(OwnError(InPhase(RankPhase::kPeerLost, 1, "rank 1 was killed")).empty());
}

TEST_CASE("the runtime's word about a lost rank is stronger than last words") {
  const std::deque<std::string> words = {"HorovodInternalError: rank 2 was killed by signal 9"};
  CHECK(BlamedBy({}, words, 0, 4) == 2);
  CHECK(BlamedBy(InPhase(RankPhase::kJoining), words, 0, 4) == 2);
  CHECK(BlamedBy(InPhase(RankPhase::kPeerLost, 3), words, 0, 4) == 3);
  CHECK(BlamedBy(InPhase(RankPhase::kPeerLeft, 3), {}, 0, 4) == 3);
  CHECK(BlamedBy(InPhase(RankPhase::kLocalError, -1, "no memory"), words, 0, 4) == std::nullopt);
}

TEST_CASE("the error of another rank that a script prints is no blame while the session is well") {
  const std::deque<std::string> words = {"HorovodInternalError: rank 2 was killed by signal 9"};
  for (const RankPhase phase : {RankPhase::kRunning, RankPhase::kFinished}) {
    StatusReport report = InPhase(phase);
    CHECK(BlamedBy(report, words, 0, 4) == std::nullopt);
    report.named_peer = true;  // one operation failed by the fault of another rank
    CHECK(BlamedBy(report, words, 0, 4) == 2);
  }
}

TEST_CASE("a page that blames nobody who exists blames nobody") {
  for (const int peer : {-1, 0, 4, 1 << 30}) {
    CHECK(BlamedBy(InPhase(RankPhase::kPeerLost, peer), {}, 0, 4) == std::nullopt);
  }
}

TEST_CASE("ranks that did the same share a line, with the longest time") {
  StatusReport waiting;
  waiting.phase = RankPhase::kRunning;
  waiting.in_flight = 1;
  waiting.submitted = Allreduce();
  StatusReport longer = waiting;
  longer.submitted.age_ns = 12 * kSecond;
  StatusReport idle;
  idle.phase = RankPhase::kRunning;
  idle.beat_age_ns = 20 * kSecond;
  const std::map<int, StatusReport> reports = {{0, waiting}, {1, idle}, {2, longer}, {3, {}}};
  CHECK(WhatRanksDid(reports) ==
        std::vector<std::string>{
            "  ranks 0 and 2: allreduce 'w' submitted, not started, for 12.0 s",
            "  rank 1: no operation in flight, for 20.0 s", "  rank 3: before init()"});
  CHECK(LooksStalled(reports));
  CHECK_FALSE(LooksStalled({{0, waiting}, {1, idle}}));
  CHECK(WhatRanksDid({{0, {}}, {1, {}}}).empty());
}

TEST_CASE("a session that the stop itself has ended is told as if it went on") {
  StatusReport ended = InPhase(RankPhase::kPeerLost, 1, "rank 1 was killed");
  ended.in_flight = 1;
  ended.submitted = Allreduce();
  ended.phase_age_ns = kSecond / 10;
  CHECK(WhatRanksDid({{0, ended}}) ==
        std::vector<std::string>{"  rank 0: allreduce 'w' submitted, not started, for 3.0 s"});
  ended.phase_age_ns = 10 * kSecond;
  CHECK(WhatRanksDid({{0, ended}}) ==
        std::vector<std::string>{"  rank 0: its session had ended: rank 1 was killed"});
}

TEST_CASE("a thousand ranks that all do something else are a few lines") {
  std::map<int, StatusReport> reports;
  for (int rank = 0; rank < 1000; ++rank) {
    StatusReport report = Running();
    report.started.sequence = static_cast<std::uint64_t>(rank);
    reports.emplace(rank, report);
  }
  const std::vector<std::string> lines = WhatRanksDid(reports);
  CHECK(lines.size() == 13);
  CHECK(lines.back() == "  and 988 other activities");
}

}  // namespace
}  // namespace hvl::launcher
