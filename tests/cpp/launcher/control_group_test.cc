// Files and limits of control groups.
#include "launcher/control_group.h"

#include <catch2/catch.hpp>

namespace hvl::launcher {
namespace {

using Files = std::vector<std::string>;
constexpr GroupFile kQuota{.controller = "cpu", .first = "cpu.cfs_quota_us", .second = "cpu.max"};

TEST_CASE("the groups around a group are looked at as well, up to the root of the mount") {
  CHECK(GroupFiles("0::/a/b\n", kQuota) ==
        Files{"/sys/fs/cgroup/a/b/cpu.max", "/sys/fs/cgroup/a/cpu.max", "/sys/fs/cgroup/cpu.max"});
  CHECK(GroupFiles("0::/", kQuota) == Files{"/sys/fs/cgroup/cpu.max"});
}

TEST_CASE("the first generation has a folder per controller") {
  CHECK(GroupFiles("5:cpuacct:/x\n3:cpuset,cpu:/j\n", kQuota) ==
        Files{"/sys/fs/cgroup/cpu/j/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"});
  CHECK(GroupFiles("nonsense\n:\n", kQuota).empty());
}

TEST_CASE("a quota is time per period") {
  CHECK(QuotaFromMax("150000 100000\n") == 1.5);
  for (const char* none : {"max 100000\n", "", "0 100000", "100 0", "100"}) {
    INFO(none);
    CHECK(QuotaFromMax(none) == std::nullopt);
  }
}

}  // namespace
}  // namespace hvl::launcher
