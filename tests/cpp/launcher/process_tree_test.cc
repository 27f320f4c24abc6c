// Finding and ending descendants, with real processes.
#include "launcher/process_tree.h"

#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

namespace hvl::launcher {
namespace {

/// A child that has a child of its own; both wait for signals. Returns the child's pid once both
/// are there.
pid_t StartFamily() {
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const pid_t grandchild = ::fork();
    if (grandchild == 0 && ::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

bool Contains(const std::vector<ProcessInfo>& processes, pid_t pid) {
  return std::any_of(processes.begin(), processes.end(),
                     [pid](const ProcessInfo& p) { return p.pid == pid; });
}

TEST_CASE("a process is described as the kernel sees it") {
  const auto self = FindProcess(::getpid());
  REQUIRE(self.has_value());
  CHECK(self->pid == ::getpid());
  CHECK(self->parent == ::getppid());
  CHECK(self->group == ::getpgrp());
  CHECK(self->state == 'R');
  CHECK(self->start_ticks > 0);
  CHECK(self->Same(*FindProcess(::getpid())));
  CHECK_FALSE(FindProcess(-1).has_value());
}

TEST_CASE("descendants are found, signalled and adopted until nobody is left") {
  BecomeReaper();
  const pid_t child = StartFamily();
  const std::vector<ProcessInfo> family = Descendants(::getpid());
  REQUIRE(family.size() == 2);
  CHECK(family[0].pid == child);
  CHECK(family[1].parent == child);
  CHECK(Contains(Children(), child));
  CHECK(Children().size() == 1);

  CHECK(SignalProcess(family[0], SIGKILL));
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK_FALSE(SignalProcess(family[0], SIGKILL));  // the number may belong to anybody now
  REQUIRE(Children().size() == 1);                 // the orphan is ours
  CHECK(Children()[0].Same(family[1]));

  CHECK(SignalProcess(family[1], SIGKILL));
  REQUIRE(::waitpid(family[1].pid, nullptr, 0) == family[1].pid);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
  CHECK(Descendants(::getpid()).empty());
}

TEST_CASE("a process with another start time is another process") {
  ProcessInfo impostor = *FindProcess(::getpid());
  impostor.start_ticks += 1;
  CHECK_FALSE(SignalProcess(impostor, SIGTERM));
}

TEST_CASE("the dead do not count as descendants") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK_FALSE(Contains(Descendants(::getpid()), child));
  CHECK_FALSE(Contains(Children(), child));
  REQUIRE(::waitpid(child, nullptr, 0) == child);
}

}  // namespace
}  // namespace hvl::launcher
