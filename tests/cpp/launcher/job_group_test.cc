// The control group of a job: where it is made, and that it is gone afterwards.
#include "launcher/job_group.h"

#include <catch2/catch.hpp>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "launcher/spawn.h"

namespace hvl::launcher {
namespace {

constexpr const char* kMounts =
    "31 25 0:27 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro\n"
    "32 31 0:28 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:10 - cgroup2 cgroup2 rw\n";

TEST_CASE("the own group is found below the mount of the second generation") {
  CHECK(OwnGroupFolder("4:memory:/a\n0::/\n", kMounts) == "/sys/fs/cgroup/unified");
  CHECK(OwnGroupFolder("0::/user.slice/x.scope\n4:memory:/a\n", kMounts) ==
        "/sys/fs/cgroup/unified/user.slice/x.scope");
}

TEST_CASE("where only a part of the hierarchy is mounted, the path begins there") {
  const char* mounts = "41 31 0:38 /pod/box /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
  CHECK(OwnGroupFolder("0::/pod/box\n", mounts) == "/sys/fs/cgroup");
  CHECK(OwnGroupFolder("0::/pod/box/job\n", mounts) == "/sys/fs/cgroup/job");
  CHECK(OwnGroupFolder("0::/pod/boxer\n", mounts).empty());
  CHECK(OwnGroupFolder("0::/other\n", mounts).empty());
}

TEST_CASE("without a mount, or outside of what is seen, there is none") {
  CHECK(OwnGroupFolder("0::/\n", "").empty());
  CHECK(OwnGroupFolder("", kMounts).empty());
  CHECK(OwnGroupFolder("4:memory:/a\n", kMounts).empty());
  CHECK(OwnGroupFolder("0::/../sibling\n", kMounts).empty());
  CHECK(OwnGroupFolder("0::/\n", "garbage\n41 31 - cgroup2\n 0:38 / / - cgroup2").empty());
}

/// Null, with a remark, where this machine has none for us.
std::unique_ptr<JobGroup> MakeGroup(const std::string& mark) {
  auto group = JobGroup::Make("test", mark);
  if (!group.ok()) {
    WARN("skipped: " << group.status().message());
    return nullptr;
  }
  return std::move(*group);
}

bool Exists(const std::string& folder) { return ::access(folder.c_str(), F_OK) == 0; }

/// A process of the group that ignores what can be ignored.
pid_t StartIn(const JobGroup& group) {
  EnvBlock env;
  const SpawnRequest request{.path = "/bin/sh",
                             .arguments = {"sh", "-c", "trap '' TERM INT HUP; sleep 1000"},
                             .env = &env,
                             .processors = {},
                             .group_fd = group.fd()};
  Child child;
  REQUIRE(Spawn(request, {}, &child).exit_code == 0);
  if (!child.in_group) ::kill(child.pid, SIGKILL);  // nobody else would
  REQUIRE(child.in_group);
  return child.pid;
}

TEST_CASE("one write ends who is in the group, and the group goes with its object") {
  std::unique_ptr<JobGroup> group = MakeGroup("-one-write");
  if (group == nullptr) return;
  const std::string folder = group->folder();
  const pid_t pid = StartIn(*group);
  group->Kill();
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(WTERMSIG(status) == SIGKILL);
  group.reset();
  CHECK_FALSE(Exists(folder));
}

TEST_CASE("who is left in the group, and in groups made inside of it, goes with it") {
  std::unique_ptr<JobGroup> group = MakeGroup("-left");
  if (group == nullptr) return;
  const std::string folder = group->folder();
  const pid_t pid = StartIn(*group);
  REQUIRE(::mkdir((folder + "/inner").c_str(), 0755) == 0);
  group.reset();
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK_FALSE(Exists(folder));
}

TEST_CASE("groups of a supervisor that has died are ended by its mark, others stay") {
  std::array<int, 2> line{}, other_line{};
  REQUIRE(::pipe(line.data()) == 0);
  REQUIRE(::pipe(other_line.data()) == 0);
  const std::string mark = GroupMark(::getpid(), line[0]);
  CHECK(mark == GroupMark(::getpid(), line[1]));
  CHECK(mark != GroupMark(::getpid(), other_line[0]));
  std::unique_ptr<JobGroup> group = MakeGroup(mark);
  const std::unique_ptr<JobGroup> other =
      group ? MakeGroup(GroupMark(::getpid(), other_line[0])) : nullptr;
  if (group == nullptr || other == nullptr) return;
  const std::string folder = group->folder();
  const pid_t pid = StartIn(*group);
  EndLeftGroups(mark, std::chrono::seconds(5));
  CHECK(::waitpid(pid, nullptr, 0) == pid);
  CHECK_FALSE(Exists(folder));
  CHECK(Exists(other->folder()));
  for (const int fd : {line[0], line[1], other_line[0], other_line[1]}) ::close(fd);
}

TEST_CASE("a descriptor that is no group starts the process where we are") {
  EnvBlock env;
  const SpawnRequest request{.path = "/bin/true",
                             .arguments = {"true"},
                             .env = &env,
                             .processors = {},
                             .group_fd = STDERR_FILENO};
  Child child;
  REQUIRE(Spawn(request, {}, &child).exit_code == 0);
  CHECK_FALSE(child.in_group);
  CHECK(::waitpid(child.pid, nullptr, 0) == child.pid);
}

}  // namespace
}  // namespace hvl::launcher
