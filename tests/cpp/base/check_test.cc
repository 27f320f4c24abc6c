// HVL_CHECK: silent while the condition holds; otherwise one line on standard error and SIGABRT.
// The death is observed in a forked child.
#include "csrc/base/check.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <functional>

#include "csrc/base/str.h"
#include "horovodlite/status.h"

namespace hvl {
namespace {

struct Death {
  int wait_status = 0;
  std::string stderr_text;
};

/// Runs `body` in a child whose standard error is returned. The child never comes back from it.
Death RunInChild(const std::function<void()>& body) {
  int pipe[2];
  REQUIRE(::pipe2(pipe, O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);  // Catch2 would report the child's abort as its own
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::dup2(pipe[1], STDERR_FILENO);
    body();
    ::_exit(0);
  }
  ::close(pipe[1]);
  Death death;
  char chunk[512];
  for (ssize_t got; (got = ::read(pipe[0], chunk, sizeof(chunk))) > 0;) {
    death.stderr_text.append(chunk, static_cast<std::size_t>(got));
  }
  ::close(pipe[0]);
  REQUIRE(::waitpid(child, &death.wait_status, 0) == child);
  return death;
}

TEST_CASE("a condition that holds costs nothing and evaluates once") {
  int evaluated = 0;
  int described = 0;
  HVL_CHECK(++evaluated == 1, Format("never formatted {}", ++described));
  HVL_CHECK(evaluated == 1);
  CHECK(evaluated == 1);
  CHECK(described == 0);
}

TEST_CASE("a broken condition names the place, the condition and the details, and aborts") {
  const Death death = RunInChild([] {
    const int index = 7;
    HVL_CHECK(index < 5, Format("index {} of {}", index, 5));
  });
  REQUIRE(WIFSIGNALED(death.wait_status));
  CHECK(WTERMSIG(death.wait_status) == SIGABRT);
  CHECK_THAT(death.stderr_text,
             Catch::Contains("check_test.cc:") && Catch::Contains("index < 5 does not hold") &&
                 Catch::Contains("index 7 of 5") && Catch::EndsWith("please report this\n"));
}

TEST_CASE("an error status with code OK is our bug") {
  const Death death = RunInChild([] { static_cast<void>(Status(StatusCode::kOk, "fine")); });
  REQUIRE(WIFSIGNALED(death.wait_status));
  CHECK(WTERMSIG(death.wait_status) == SIGABRT);
}

}  // namespace
}  // namespace hvl
