#include "launcher/oom_watch.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "csrc/base/str.h"
#include "launcher/file.h"

namespace hvl::launcher {
namespace {

constexpr std::string_view kKey = "oom_kill";

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

/// Where the counter may stand, best first. Lines of /proc/self/cgroup are "id:controllers:path";
/// inside a container the path may be the host's, so the root of the mount is tried as well.
std::vector<std::string> GroupFiles() {
  std::vector<std::string> files;
  for (const std::string& line : Lines(ReadFile("/proc/self/cgroup").value_or(""))) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1) == "/" ? "" : line.substr(second + 1);
    if (controllers.empty()) {
      files.push_back(Format("/sys/fs/cgroup{}/memory.events", path));
      files.emplace_back("/sys/fs/cgroup/memory.events");
    } else if (controllers == "memory") {
      files.push_back(Format("/sys/fs/cgroup/memory{}/memory.oom_control", path));
      files.emplace_back("/sys/fs/cgroup/memory/memory.oom_control");
    }
  }
  return files;
}

std::optional<long> CounterIn(const std::string& path) {
  return Counter(ReadFile(path).value_or(""), kKey);
}

bool Grew(const std::optional<long>& before, const std::optional<long>& now) {
  return before && now && *now > *before;
}

}  // namespace

std::optional<long> Counter(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ' ') continue;
    const std::string_view digits = line.substr(key.size() + 1);
    long value = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (parsed.ec == std::errc()) return value;
  }
  return std::nullopt;
}

OomWatch::OomWatch() : machine_kills_(CounterIn("/proc/vmstat")) {
  for (const std::string& file : GroupFiles()) {
    group_kills_ = CounterIn(file);
    if (!group_kills_) continue;
    group_file_ = file;
    break;
  }
}

std::string OomWatch::Hint() const {
  if (Grew(group_kills_, CounterIn(group_file_))) {
    return Format(
        "very likely out of memory: the kernel has killed for the memory limit of this "
        "control group since the start ({})",
        group_file_);
  }
  if (Grew(machine_kills_, CounterIn("/proc/vmstat"))) {
    return "very likely out of memory: the kernel's out-of-memory killer has struck on this "
           "machine since the start";
  }
  return "";
}

}  // namespace hvl::launcher
