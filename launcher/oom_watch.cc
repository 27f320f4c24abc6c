#include "launcher/oom_watch.h"

#include <algorithm>
#include <charconv>

#include "csrc/base/str.h"
#include "launcher/control_group.h"
#include "launcher/file.h"

namespace hvl::launcher {
namespace {

constexpr std::string_view kKey = "oom_kill";

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
  const std::string self = ReadFile("/proc/self/cgroup").value_or("");
  constexpr GroupFile kEvents{
      .controller = "memory", .first = "memory.oom_control", .second = "memory.events"};
  for (const std::string& file : GroupFiles(self, kEvents)) {
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
