// What control groups allow this process: where their files are, and the share of processor time.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvl::launcher {

/// The names of one thing in the two generations of control groups.
struct GroupFile {
  std::string_view controller;  ///< "memory"
  std::string_view first;       ///< "memory.oom_control"
  std::string_view second;      ///< "memory.events"
};

/// Where the file may stand for this process, its own group first, then those around it up to the
/// root of the mount, which inside a container is all that can be seen. `self` is the content of
/// /proc/self/cgroup, lines of "id:controllers:path".
std::vector<std::string> GroupFiles(std::string_view self, const GroupFile& file);

/// Content of cpu.max: "150000 100000" is 1.5; nothing for "max 100000", or what is no quota.
std::optional<double> QuotaFromMax(std::string_view content);

/// The processors' worth of time that this process and all others of its groups may use together;
/// nothing = no limit. The smallest of the group and those around it counts.
std::optional<double> ProcessorQuota();

}  // namespace hvl::launcher
