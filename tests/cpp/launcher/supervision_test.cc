// What happens to a job, step by step, in made-up time.
#include "launcher/supervision.h"

#include <catch2/catch.hpp>

#include <csignal>
#include <random>

namespace hvl::launcher {
namespace {

using namespace std::chrono_literals;
using Kind = Effect::Kind;
using Phase = Supervision::Phase;

constexpr ExitStatus kGood{};
constexpr ExitStatus kBad{.code = 3, .signal = 0, .core_dumped = false};
constexpr ExitStatus kKilled{.code = 0, .signal = SIGKILL, .core_dumped = false};

const Effects kNothing;
const Effects kStop = {{Kind::kSignalRanks, SIGTERM}, {Kind::kSignalLeftovers, SIGTERM}};
const Effects kFind = {{Kind::kFindAwaited}};
const Effects kKill = {{Kind::kKillAll, SIGKILL}};

TimePoint At(Duration since_start) { return TimePoint{} + since_start; }

Supervision Job(int ranks, Timing timing = {}) { return {ranks, timing, At(0s)}; }

TEST_CASE("a job whose ranks end well ends well and is tidied up") {
  Supervision job = Job(2);
  CHECK_FALSE(job.deadline().has_value());
  CHECK(job.RankEnded(1, kGood, At(5s)) == kNothing);
  CHECK(job.RankEnded(0, kGood, At(6s)) == kNothing);
  CHECK(job.phase() == Phase::kTidying);
  job.NobodyLeft();
  CHECK(job.phase() == Phase::kDone);
  CHECK(job.cause() == EndCause::kNone);
}

TEST_CASE("processes that outlive all ranks are asked to end, then killed") {
  Supervision job = Job(1);
  job.RankEnded(0, kGood, At(1s));
  CHECK(job.deadline() == At(1500ms));
  CHECK(job.TimePassed(At(1400ms)) == kNothing);
  CHECK(job.TimePassed(At(1500ms)) == kStop);
  CHECK(job.TimePassed(At(3s)) == kKill);
  CHECK(job.cause() == EndCause::kNone);
}

TEST_CASE("when a rank fails the others get a moment, then SIGTERM, then SIGKILL, within 3 s") {
  Supervision job = Job(3);
  CHECK(job.RankEnded(1, kBad, At(10s)) == kNothing);
  CHECK(job.phase() == Phase::kNoticing);
  CHECK(job.deadline() == At(11s));
  CHECK(job.TimePassed(At(11s)) == kFind);
  CHECK(job.RankAwaited(std::nullopt, At(11s)) == kStop);
  CHECK(job.deadline() == At(12500ms));
  CHECK(job.TimePassed(At(12500ms)) == kKill);
  CHECK(job.cause() == EndCause::kFailure);
}

TEST_CASE("a rank that ends during that moment ended by itself, later it was asked to") {
  Supervision job = Job(3);
  job.RankEnded(1, kKilled, At(1s));
  job.RankEnded(0, kBad, At(1200ms));
  job.TimePassed(At(2s));
  job.RankAwaited(std::nullopt, At(2s));
  job.RankEnded(2, kGood, At(2100ms));
  REQUIRE(job.ends().size() == 3);
  CHECK_FALSE(job.ends()[0].asked_to_stop);
  CHECK_FALSE(job.ends()[1].asked_to_stop);
  CHECK(job.ends()[2].asked_to_stop);
  CHECK(job.ends()[1].rank == 0);
}

TEST_CASE("a blamed rank that still runs is waited for, and the others are stopped when it ends") {
  Supervision job = Job(3);
  job.RankEnded(0, kBad, At(1s));
  CHECK(job.TimePassed(At(2s)) == kFind);
  CHECK(job.RankAwaited(1, At(2s)) == kNothing);
  CHECK(job.deadline() == At(7s));
  CHECK(job.TimePassed(At(6s)) == kNothing);
  CHECK(job.RankEnded(1, kBad, At(6s)) == kFind);
  CHECK(job.RankAwaited(std::nullopt, At(6s)) == kStop);
  REQUIRE(job.ends().size() == 2);
  CHECK_FALSE(job.ends()[1].asked_to_stop);
}

TEST_CASE("however blame goes on from rank to rank, it is followed for 5 s only") {
  Supervision job = Job(4);
  job.RankEnded(0, kBad, At(1s));
  job.TimePassed(At(2s));
  job.RankAwaited(1, At(2s));
  CHECK(job.RankEnded(1, kBad, At(6s)) == kFind);
  CHECK(job.RankAwaited(2, At(6s)) == kNothing);
  CHECK(job.deadline() == At(7s));
  CHECK(job.TimePassed(At(7s)) == kStop);
}

TEST_CASE("a signal that ends the job does not wait for a blamed rank") {
  Supervision job = Job(2);
  job.RankEnded(0, kBad, At(1s));
  job.TimePassed(At(2s));
  job.RankAwaited(1, At(2s));
  CHECK(job.SignalReceived(SIGTERM, At(3s)) == kStop);
  CHECK(job.RankAwaited(1, At(3s)) == kNothing);
  CHECK(job.phase() == Phase::kStopping);
}

TEST_CASE("when all ranks are gone after a failure what is left is stopped at once") {
  Supervision job = Job(2);
  job.RankEnded(0, kBad, At(1s));
  CHECK(job.RankEnded(1, kBad, At(1100ms)) == kStop);
}

TEST_CASE("a rank that ends well does not end the job of the others") {
  Supervision job = Job(2);
  CHECK(job.RankEnded(0, kGood, At(1s)) == kNothing);
  CHECK(job.phase() == Phase::kRunning);
  CHECK_FALSE(job.deadline().has_value());
}

TEST_CASE("a signal is passed on once and the ranks get their grace time") {
  Timing timing;
  timing.signal_grace = 10s;
  Supervision job = Job(2, timing);
  const Effects interrupt = {{Kind::kSignalRanks, SIGINT}, {Kind::kSignalLeftovers, SIGINT}};
  CHECK(job.SignalReceived(SIGINT, At(1s)) == interrupt);
  CHECK(job.deadline() == At(11s));
  CHECK(job.RankEnded(0, kBad, At(2s)) == Effects{{Kind::kSignalLeftovers, SIGINT}});
  CHECK(job.deadline() == At(11s));  // one that is quick does not shorten the time of the others
  CHECK(job.TimePassed(At(11s)) == kKill);
  CHECK(job.cause() == EndCause::kSignal);
  CHECK(job.stop_signal() == SIGINT);
}

TEST_CASE("a second interrupt kills, a second SIGTERM changes nothing") {
  Supervision job = Job(2);
  CHECK(job.SignalReceived(SIGTERM, At(1s)) == kStop);
  CHECK(job.SignalReceived(SIGTERM, At(2s)) == kNothing);
  CHECK(job.SignalReceived(SIGINT, At(3s)) == kKill);
  CHECK(job.SignalReceived(SIGINT, At(3s)) == kNothing);
  CHECK(job.stop_signal() == SIGTERM);
}

TEST_CASE("a hang-up reaches the ranks as SIGTERM and counts as SIGHUP") {
  Supervision job = Job(1);
  CHECK(job.SignalReceived(SIGHUP, At(1s)) == kStop);
  CHECK(job.stop_signal() == SIGHUP);
}

TEST_CASE("an interrupt after a failure ends the waiting and keeps the cause") {
  Supervision job = Job(2);
  job.RankEnded(0, kBad, At(1s));
  CHECK(job.SignalReceived(SIGINT, At(1100ms)) == kKill);
  CHECK(job.cause() == EndCause::kFailure);
}

TEST_CASE("signals that do not ask to stop are passed on and change nothing") {
  Supervision job = Job(1);
  for (const int signo : {SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    CHECK(job.SignalReceived(signo, At(1s)) == Effects{{Kind::kSignalRanks, signo}});
  }
  CHECK(job.phase() == Phase::kRunning);
}

TEST_CASE("the time-out stops a job that still runs") {
  Timing timing;
  timing.timeout = 60s;
  Supervision job = Job(1, timing);
  CHECK(job.deadline() == At(60s));
  CHECK(job.TimePassed(At(60s)) == kStop);
  CHECK(job.cause() == EndCause::kTimeout);
}

TEST_CASE("the time-out does not cut the grace time after a signal") {
  Timing timing;
  timing.timeout = 60s;
  Supervision job = Job(1, timing);
  job.SignalReceived(SIGTERM, At(59s));
  CHECK(job.TimePassed(At(60s)) == kNothing);
  CHECK(job.cause() == EndCause::kSignal);
}

TEST_CASE("without the front process everything is killed at once") {
  Supervision job = Job(2);
  CHECK(job.FrontGone(At(1s)) == kKill);
  CHECK(job.cause() == EndCause::kDeserted);
  CHECK(job.FrontGone(At(1s)) == kNothing);
}

TEST_CASE("killing is repeated, for what was born meanwhile, and given up in the end") {
  Supervision job = Job(1);
  job.FrontGone(At(0s));
  TimePoint now = At(0s);
  int rounds = 0;
  while (job.phase() != Phase::kDone) {
    REQUIRE(job.deadline().has_value());
    now = *job.deadline();
    const Effects effects = job.TimePassed(now);
    if (job.phase() != Phase::kDone) CHECK(effects == kKill);
    REQUIRE(++rounds < 1000);
  }
  CHECK(now == At(5s));
  CHECK_FALSE(job.deadline().has_value());
}

TEST_CASE("a rank that cannot be started ends the others that were") {
  Supervision job = Job(3);
  CHECK(job.LaunchFailed(At(0s)) == kKill);
  CHECK(job.cause() == EndCause::kLaunch);
  job.NobodyLeft();
  CHECK(job.phase() == Phase::kDone);
}

TEST_CASE("what a rank leaves behind is signalled again when its parent goes") {
  Supervision job = Job(2);
  CHECK(job.LeftoverEnded() == kNothing);
  job.SignalReceived(SIGTERM, At(1s));
  CHECK(job.LeftoverEnded() == Effects{{Kind::kSignalLeftovers, SIGTERM}});
}

TEST_CASE("in any order of events the job ends, and its cause never changes") {
  const auto seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 4);
    Timing timing;
    if (random() % 3 == 0) timing.timeout = 5s;
    Supervision job = Job(ranks, timing);
    std::vector<int> alive;
    const auto answer = [&](const Effects& effects, TimePoint now) {
      if (effects != kFind) return;
      const bool somebody = !alive.empty() && random() % 2 == 0;
      job.RankAwaited(somebody ? std::optional(alive.front()) : std::nullopt, now);
    };
    for (int rank = 0; rank < ranks; ++rank) alive.push_back(rank);
    TimePoint now = At(0s);
    EndCause cause = EndCause::kNone;
    for (int step = 0; job.phase() != Phase::kDone; ++step) {
      REQUIRE(step < 10000);
      now += std::chrono::milliseconds(random() % 400);
      const auto kind = random() % 10;
      if (kind < 3 && !alive.empty()) {
        const std::size_t which = random() % alive.size();
        const int rank = alive[which];
        alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(which));
        answer(job.RankEnded(rank, random() % 2 == 0 ? kGood : kBad, now), now);
      } else if (kind == 3) {
        const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
        job.SignalReceived(signals[random() % 4], now);
      } else if (kind == 4) {
        job.LeftoverEnded();
      } else if (kind == 5 && alive.empty()) {
        job.NobodyLeft();
      }
      answer(job.TimePassed(now), now);
      if (cause != EndCause::kNone) CHECK(job.cause() == cause);
      cause = job.cause();
      if (job.phase() != Phase::kDone && job.phase() != Phase::kRunning) {
        REQUIRE(job.deadline().has_value());
        REQUIRE(*job.deadline() <= now + 30s);
      }
    }
  }
}

}  // namespace
}  // namespace hvl::launcher
