// The processes that descend from this one, read from /proc, and how to end them all.
//
// A process that calls BecomeReaper() cannot lose a descendant: whoever is orphaned below it, by a
// double fork, setsid or the death of its parent, becomes its child. So the tree is complete, and
// "no child left" means "no descendant left".
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace hvl::launcher {

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  std::uint64_t start_ticks = 0;  ///< since boot; with pid it names a process for good
  char state = '?';               ///< 'Z' = dead, waiting to be reaped; 'T' = stopped by a signal
  std::string name;

  bool Same(const ProcessInfo& other) const {
    return pid == other.pid && start_ticks == other.start_ticks;
  }
};

/// Adopts orphaned descendants from now on.
void BecomeReaper();

/// Nothing when there is no such process, or no /proc.
std::optional<ProcessInfo> FindProcess(pid_t pid);

/// The living children of this process, those adopted included, without those that `skip` names:
/// to look at one costs system calls.
std::vector<ProcessInfo> Children(const std::function<bool(pid_t)>& skip = nullptr);

/// All living descendants of `root`, parents before children. Empty without /proc.
std::vector<ProcessInfo> Descendants(pid_t root);

/// Sends `signo` to exactly this process; false when it is gone or not ours to signal.
bool SignalProcess(const ProcessInfo& process, int signo);

}  // namespace hvl::launcher
