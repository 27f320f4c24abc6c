// How a process ended, in the words of a shell; and the exit codes that hvlrun itself uses.
#pragma once

#include <string>

namespace hvl::launcher {

inline constexpr int kExitUnfit = 1;            ///< --doctor: no job can run on this machine
inline constexpr int kExitTimeout = 124;        ///< --timeout passed
inline constexpr int kExitLauncherError = 125;  ///< hvlrun could not do its own work
inline constexpr int kExitCannotExec = 126;     ///< the command was found but cannot be run
inline constexpr int kExitNotFound = 127;       ///< there is no such command

/// Why hvlrun does not go on: its exit code, and one line that says what to do.
struct Refusal {
  int exit_code = 0;  ///< 0 = there is no reason, go on
  std::string message;
};

struct ExitStatus {
  int code = 0;    ///< of exit(); 0 when a signal ended the process
  int signal = 0;  ///< that ended the process; 0 when it exited by itself
  bool core_dumped = false;
  bool lost = false;  ///< its host is, so nobody knows how it ended

  /// From the status word of wait().
  static ExitStatus FromWait(int wait_status);

  bool ok() const { return code == 0 && signal == 0 && !lost; }
  /// What a shell would put into $?: the code, or 128 + the signal; of a lost rank 125.
  int shell_code() const {
    if (lost) return kExitLauncherError;
    return signal != 0 ? 128 + signal : code;
  }

  bool operator==(const ExitStatus&) const = default;
};

/// "SIGKILL"; "signal 70" for one without a name.
std::string SignalName(int signo);
/// "exit code 3", "SIGSEGV (signal 11, core dumped)", "lost with its host".
std::string Describe(const ExitStatus& status);

}  // namespace hvl::launcher
