// Tells whether the kernel's out-of-memory killer has been at work since a job began.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hvl::launcher {

/// The number behind `key` in lines "key number", as in /proc/vmstat and memory.events.
std::optional<long> Counter(std::string_view text, std::string_view key);

class OomWatch {
 public:
  /// Notes the counters as they are now.
  OomWatch();
  /// A sentence for the failure summary, or "".
  std::string Hint() const;

 private:
  std::string group_file_;  // of this process's memory control group; "" = none found
  std::optional<long> group_kills_;
  std::optional<long> machine_kills_;
};

}  // namespace hvl::launcher
