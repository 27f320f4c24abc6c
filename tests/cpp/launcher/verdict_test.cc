// Who failed first, and how it is told.
#include "launcher/verdict.h"

#include <catch2/catch.hpp>

#include <csignal>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

using namespace std::chrono_literals;
using Lines = std::deque<std::string>;

constexpr ExitStatus kGood{};
constexpr ExitStatus Code(int code) { return {.code = code, .signal = 0, .core_dumped = false}; }
constexpr ExitStatus Signal(int signo) {
  return {.code = 0, .signal = signo, .core_dumped = false};
}

RankEnd End(int rank, ExitStatus status, Duration after, bool asked_to_stop = false) {
  return {
      .rank = rank, .status = status, .at = TimePoint{} + after, .asked_to_stop = asked_to_stop};
}

JobEnd Failure(std::vector<RankEnd> ends, std::map<int, int> blames = {}) {
  JobEnd job;
  job.job_id = "j1";
  job.rank_count = 4;
  job.end = TimePoint{} + 9s;
  job.cause = EndCause::kFailure;
  job.ends = std::move(ends);
  job.blames = std::move(blames);
  return job;
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST_CASE("the first that ended badly is the cause") {
  const JobEnd job = Failure({End(3, kGood, 1s), End(2, Code(3), 2s), End(0, Code(1), 3s)});
  CHECK(RootCause(job).rank == 2);
  CHECK(ExitCode(job) == 3);
}

TEST_CASE("a rank that lost a peer is not the cause, even when it ends before that peer") {
  const JobEnd job =
      Failure({End(0, Code(1), 1s), End(2, Code(1), 1s), End(1, Signal(9), 2s)}, {{0, 1}, {2, 1}});
  CHECK(RootCause(job).rank == 1);
  CHECK(ExitCode(job) == 137);
}

TEST_CASE("blame is followed from rank to rank") {
  const JobEnd job =
      Failure({End(0, Code(1), 1s), End(1, Code(1), 1s), End(2, Code(7), 2s)}, {{0, 1}, {1, 2}});
  CHECK(RootCause(job).rank == 2);
}

TEST_CASE("a failure that blames nobody counts before one that blames a rank that did not fail") {
  const JobEnd job = Failure({End(0, Code(1), 1s), End(2, Code(5), 2s)}, {{0, 3}});
  CHECK(RootCause(job).rank == 2);
}

TEST_CASE(
    "a blamed rank is awaited while it runs, over ranks that have ended with the same blame") {
  CHECK(AwaitedRank(Failure({End(0, Code(1), 1s)}, {{0, 1}})) == 1);
  CHECK(AwaitedRank(Failure({End(0, Code(1), 1s), End(1, Code(1), 2s)}, {{0, 1}, {1, 3}})) == 3);
}

TEST_CASE("nobody is awaited when the blamed has ended, or the first to end blames nobody") {
  CHECK(AwaitedRank(Failure({End(0, Code(1), 1s), End(1, Signal(9), 2s)}, {{0, 1}})) ==
        std::nullopt);
  CHECK(AwaitedRank(Failure({End(1, kGood, 1s), End(0, Code(1), 2s)}, {{0, 1}})) == std::nullopt);
  CHECK(AwaitedRank(Failure({End(0, Code(1), 1s)})) == std::nullopt);
  CHECK(AwaitedRank(Failure({End(0, Code(1), 1s), End(1, Code(2), 1s)}, {{0, 1}, {1, 0}})) ==
        std::nullopt);
  CHECK(AwaitedRank(Failure({})) == std::nullopt);
}

TEST_CASE("when each blames another, somebody is named all the same") {
  const JobEnd job = Failure({End(0, Code(1), 1s), End(1, Code(2), 1s)}, {{0, 1}, {1, 0}});
  CHECK((RootCause(job).rank == 0 || RootCause(job).rank == 1));
}

TEST_CASE("a rank that hvlrun stopped is never the cause") {
  const JobEnd job = Failure({End(1, Code(4), 1s), End(0, Signal(SIGTERM), 2s, true)}, {{1, 0}});
  CHECK(RootCause(job).rank == 1);
  CHECK_THAT(Joined(FailureSummary(job, {})),
             Catch::Contains("it lost rank 0, which did not end by itself"));
}

TEST_CASE("the exit code tells how a job ended") {
  JobEnd job = Failure({End(0, Code(1), 1s)});
  CHECK(ExitCode(job) == 1);
  job.cause = EndCause::kNone;
  CHECK(ExitCode(job) == 0);
  job.cause = EndCause::kTimeout;
  CHECK(ExitCode(job) == 124);
  job.cause = EndCause::kSignal;
  job.stop_signal = SIGINT;
  CHECK(ExitCode(job) == 130);
  job.stop_signal = SIGTERM;
  CHECK(ExitCode(job) == 143);
  job.cause = EndCause::kLaunch;
  CHECK(ExitCode(job) == 125);
}

TEST_CASE("the runtime's error names the lost rank") {
  const Lines lines = {
      "Traceback (most recent call last):", "  File \"t.py\", line 3, in <module>",
      "horovodlite.exceptions.HorovodInternalError: allreduce 'x' on rank 0: rank 2 was killed by "
      "signal 9",
      "[done]"};
  CHECK(BlamedRank(lines, 0, 4) == 2);
  CHECK(BlamedRank(lines, 2, 4) == 0);
  CHECK_FALSE(BlamedRank(lines, 0, 2).has_value());  // there is no rank 2 in a world of two
}

TEST_CASE("the runtime's log names the lost rank when a script has caught the error") {
  const Lines lines = {
      "2026-11-29T16:43:09Z [2/3] ERROR engine: the session ends: Unavailable: rank 1 is gone",
      "rank 2 saves its state"};
  CHECK(BlamedRank(lines, 2, 3) == 1);
}

TEST_CASE("a rank that was stopped after it had lost its peer is told so") {
  const JobEnd job = Failure({End(1, Signal(9), 1s), End(0, Signal(15), 2s, true)}, {{0, 1}});
  CHECK_THAT(Joined(FailureSummary(job, {})),
             Catch::Contains("then rank 0: stopped by hvlrun, lost rank 1\n"));
}

TEST_CASE("other errors blame nobody") {
  CHECK_FALSE(BlamedRank({}, 0, 4).has_value());
  CHECK_FALSE(BlamedRank({"ValueError: rank 2 of the tensor is wrong"}, 0, 4).has_value());
  CHECK_FALSE(BlamedRank({"HorovodInternalError: shutdown"}, 0, 4).has_value());
  CHECK_FALSE(BlamedRank({"HorovodInternalError: rank x, rank 99999999999"}, 0, 4).has_value());
  CHECK_FALSE(BlamedRank({"rank 2: HorovodInternalError"}, 0, 4).has_value());
}

TEST_CASE("the summary says who, when, how, its last words, and what followed") {
  const JobEnd job = Failure({End(1, Signal(9), 2s), End(0, Code(1), 2100ms),
                              End(2, Code(1), 2100ms), End(3, Signal(15), 4s, true)},
                             {{0, 1}, {2, 1}});
  const Culprit culprit{.pid = 77,
                        .host = "localhost",
                        .peak_memory_kib = 3 << 20,
                        .memory_hint = "very likely out of memory",
                        .lost_because = "",
                        .last_lines = {"epoch 3", "loading"},
                        .log_folder = "logs/rank.1"};
  CHECK(Joined(FailureSummary(job, culprit)) ==
        "job j1 failed after 2.0 s; first to fail: rank 1 of 4 (pid 77 on localhost)\n"
        "  SIGKILL (signal 9), not sent by hvlrun; peak memory 3.0 GiB\n"
        "  very likely out of memory\n"
        "  its last lines on stderr:\n"
        "  | epoch 3\n"
        "  | loading\n"
        "then ranks 0 and 2: exit code 1, lost rank 1; rank 3: stopped by hvlrun\n"
        "exit code 137; its output is in logs/rank.1\n");
}

TEST_CASE("memory is hinted at only when the rank was killed") {
  const JobEnd job = Failure({End(0, Signal(SIGSEGV), 1s)});
  Culprit culprit;
  culprit.memory_hint = "out of memory";
  CHECK_THAT(Joined(FailureSummary(job, culprit)), !Catch::Contains("out of memory"));
}

TEST_CASE("a rank that is blamed but had ended well is mentioned") {
  const JobEnd job = Failure({End(1, kGood, 1s), End(0, Code(1), 2s)}, {{0, 1}});
  CHECK_THAT(Joined(FailureSummary(job, {})),
             Catch::Contains("it lost rank 1, which had ended with exit code 0 1.0 s after"));
}

TEST_CASE("the summary shows the last lines only") {
  Culprit culprit;
  for (int i = 0; i < 20; ++i) culprit.last_lines.push_back(Format("line {}", i));
  const std::string text = Joined(FailureSummary(Failure({End(0, Code(1), 1s)}), culprit));
  CHECK_THAT(text, !Catch::Contains("| line 7\n"));
  CHECK_THAT(text, Catch::Contains("| line 8\n"));
  CHECK_THAT(text, Catch::Contains("| line 19\n"));
}

TEST_CASE("a job that was stopped is one line") {
  JobEnd job = Failure({End(0, Code(0), 3s, true), End(1, Signal(SIGKILL), 9s, true)});
  job.cause = EndCause::kSignal;
  job.stop_signal = SIGTERM;
  CHECK(Joined(StopSummary(job)) ==
        "job j1: stopped by SIGTERM; rank 1 did not end when asked and was killed, 9.0 s after "
        "the start; exit code 143\n");
  job.ends.pop_back();
  job.cause = EndCause::kTimeout;
  CHECK(Joined(StopSummary(job)) ==
        "job j1: the time of --timeout was over; all ranks ended when asked, 9.0 s after the "
        "start; exit code 124\n");
}

TEST_CASE("lists of ranks are short") {
  CHECK(RankList({3}) == "rank 3");
  CHECK(RankList({1, 0}) == "ranks 0 and 1");
  CHECK(RankList({5, 2, 3, 4, 0}) == "ranks 0 and 2-5");
  CHECK(RankList({0, 2, 4}) == "ranks 0, 2 and 4");
}

}  // namespace
}  // namespace hvl::launcher
