#include "launcher/control_group.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "csrc/base/str.h"
#include "launcher/file.h"

namespace hvl::launcher {
namespace {

/// The fields of a line "id:controllers:path".
struct GroupLine {
  std::string_view controllers;
  std::string_view path;
};

std::optional<GroupLine> ParseLine(std::string_view line) {
  const std::size_t first = line.find(':');
  const std::size_t second = line.find(':', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return std::nullopt;
  return GroupLine{line.substr(first + 1, second - first - 1), line.substr(second + 1)};
}

bool Lists(std::string_view controllers, std::string_view wanted) {
  return Format(",{},", controllers).find(Format(",{},", wanted)) != std::string::npos;
}

/// "mount/a/b/file", "mount/a/file", "mount/file".
void AddUpwards(const std::string& mount, std::string_view path, std::string_view file,
                std::vector<std::string>* files) {
  while (!path.empty() && path != "/") {
    files->push_back(Format("{}{}/{}", mount, path, file));
    path = path.substr(0, path.rfind('/'));
  }
  files->push_back(Format("{}/{}", mount, file));
}

}  // namespace

std::vector<std::string> GroupFiles(std::string_view self, const GroupFile& file) {
  std::vector<std::string> files;
  for (std::size_t at = 0; at < self.size();) {
    const std::size_t end = std::min(self.find('\n', at), self.size());
    const std::optional<GroupLine> line = ParseLine(self.substr(at, end - at));
    at = end + 1;
    if (!line) continue;
    if (line->controllers.empty()) {
      AddUpwards("/sys/fs/cgroup", line->path, file.second, &files);
    } else if (Lists(line->controllers, file.controller)) {
      // Mounted under the list of its controllers, and mostly linked under each.
      AddUpwards(Format("/sys/fs/cgroup/{}", file.controller), line->path, file.first, &files);
    }
  }
  return files;
}

std::optional<double> QuotaFromMax(std::string_view content) {
  double quota = 0;
  double period = 0;
  std::istringstream text{std::string(content)};
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

std::optional<double> ProcessorQuota() {
  std::optional<double> smallest;
  const std::string self = ReadFile("/proc/self/cgroup").value_or("");
  constexpr GroupFile kQuota{.controller = "cpu", .first = "cpu.cfs_quota_us", .second = "cpu.max"};
  for (const std::string& file : GroupFiles(self, kQuota)) {
    std::optional<double> quota;
    if (file.ends_with(kQuota.second)) {
      quota = QuotaFromMax(ReadFile(file).value_or(""));
    } else {
      const std::string folder = file.substr(0, file.size() - kQuota.first.size());
      const std::int64_t limit = ReadNumber(file).value_or(-1);  // -1 = none
      const std::int64_t period = ReadNumber(folder + "cpu.cfs_period_us").value_or(0);
      if (limit > 0 && period > 0) {
        quota = static_cast<double>(limit) / static_cast<double>(period);
      }
    }
    if (quota && (!smallest || *quota < *smallest)) smallest = quota;
  }
  return smallest;
}

}  // namespace hvl::launcher
