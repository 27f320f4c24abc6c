// Real processes that are killed, stopped or simply gone: every survivor is told who, soon.
#include <catch2/catch.hpp>

#include "csrc/base/str.h"
#include "tests/support/operations.h"
#include "tests/support/processes.h"

namespace hvl::test {
namespace {

using Catch::Contains;
using std::chrono::milliseconds;

// The promise is one second; a machine that builds something meanwhile may need longer.
constexpr std::chrono::seconds kGenerousDeadline{20};

Status RunAllreduce(Session& session, const std::string& name, std::vector<float>& values) {
  return session.Run(Allreduce(name, values));
}

/// Reduces 64 MiB until something fails; tells when it begins and how it ended.
int ReduceUntilFailure(int, std::unique_ptr<Session>& session, const Reporter& reporter) {
  std::vector<float> values(std::size_t{16} << 20, 1);
  for (;;) {
    const Status status = RunAllreduce(*session, "large", values);
    if (status.ok()) {
      reporter.Say("ran");
      continue;
    }
    reporter.Say(Format("{} culprit={} {}", StatusCodeName(status.code()), status.culprit_rank(),
                        status.message()));
    reporter.Say(session->health() == status ? "health agrees" : session->health().ToString());
    return 0;
  }
}

/// What the rank says when its operation fails.
std::string ListenForFailure(ProcessWorld& world, int rank) {
  std::string line = world.Listen(rank);
  while (line == "ran") line = world.Listen(rank);
  return line;
}

TEST_CASE("a rank killed in the middle of a large allreduce is named by all survivors, soon") {
  const std::string plane = GENERATE("local", "tcp");
  const int victim = GENERATE(0, 1, 2);
  const bool stopped_first = GENERATE(false, true);
  CAPTURE(plane, victim, stopped_first);
  ProcessWorld world(3, {{"HVL_CPU_OPERATIONS", plane}}, ReduceUntilFailure);
  // One has run, so another one is running.
  for (int rank = 0; rank < 3; ++rank) REQUIRE(world.Listen(rank) == "ran");
  if (stopped_first) {
    world.Signal(victim, SIGSTOP);
    ::usleep(50'000);  // long enough for the others to wait for it in earnest
  }
  const TimePoint death = SteadyClock().Now();
  world.Signal(victim, SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    const std::string failure = ListenForFailure(world, rank);
    CHECK_THAT(failure, Contains("Unavailable") && Contains(Format("culprit={}", victim)) &&
                            Contains(Format("rank {}", victim)));
    CHECK(SteadyClock().Now() - death < kGenerousDeadline);
    CHECK(world.Listen(rank) == "health agrees");
    CHECK(world.ExitStatus(rank) == 0);
  }
}

TEST_CASE("a rank that dies while nobody needs it is noticed as well") {
  ProcessWorld world(2, {}, [](int rank, auto& session, const Reporter& reporter) {
    std::vector<float> values(1, 1);
    if (!RunAllreduce(*session, "first", values).ok()) return 1;
    reporter.Say("ready");
    if (rank == 1) ::pause();
    const TimePoint give_up = SteadyClock().Now() + kGenerousDeadline;
    while (session->health().ok() && SteadyClock().Now() < give_up) ::usleep(1000);
    reporter.Say(session->health().message());
    return session->health().culprit_rank() == 1 ? 0 : 1;
  });
  for (int rank = 0; rank < 2; ++rank) REQUIRE(world.Listen(rank) == "ready");
  world.Signal(1, SIGKILL);
  CHECK_THAT(world.Listen(0), Contains("rank 1"));
  CHECK(world.ExitStatus(0) == 0);
}

TEST_CASE("a rank that exits without a word is named, and so is one that aborts an operation") {
  const bool orderly = GENERATE(false, true);
  CAPTURE(orderly);
  ProcessWorld world(2, {}, [orderly](int rank, auto& session, const Reporter& reporter) {
    std::vector<float> values(1, 1);
    if (!RunAllreduce(*session, "first", values).ok()) return 1;
    if (rank == 1) {
      if (!orderly) std::_Exit(7);
      session->Shutdown();
      return 7;
    }
    const Status status = RunAllreduce(*session, "second", values);
    reporter.Say(status.ToString());
    return 0;
  });
  CHECK_THAT(world.Listen(0), Contains("rank 1"));
  CHECK(world.ExitStatus(0) == 0);
  CHECK(WEXITSTATUS(world.ExitStatus(1)) == 7);
}

TEST_CASE("a stopped rank only delays the others") {
  ProcessWorld world(2, {}, [](int, auto& session, const Reporter& reporter) {
    std::vector<float> values(1, 1);
    for (int i = 0; i < 200; ++i) {
      if (!RunAllreduce(*session, "small", values).ok()) return 1;
      if (i == 100) reporter.Say("half");
    }
    return 0;
  });
  REQUIRE(world.Listen(1) == "half");
  world.Signal(1, SIGSTOP);
  ::usleep(50'000);
  world.Signal(1, SIGCONT);
  CHECK(world.ExitStatus(0) == 0);
  CHECK(world.ExitStatus(1) == 0);
}

}  // namespace
}  // namespace hvl::test
