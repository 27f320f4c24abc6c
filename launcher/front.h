// The process that the user started: it passes signals on, and it is the second keeper of the job.
// An agent on another host has one too.
//
// hvlrun is two processes. The front one stays where the user put it: in the shell's job, at the
// terminal. Its child, the supervisor, runs the job in a session of its own, so that nothing a
// terminal or a shell sends reaches ranks except through hvlrun, once. Each watches the other:
//   front gone       -> its end of the pipe closes -> the supervisor kills the job and ends;
//   supervisor gone  -> the kernel kills the ranks (PDEATHSIG); the front process, a reaper too,
//                       adopts and kills whatever else is left.
#pragma once

#include <functional>
#include <string>

#include "csrc/net/fd.h"

namespace hvl::launcher {

/// The memory of this process's command line, where ps(1) reads it.
struct CommandLine {
  char** argv = nullptr;
  int argc = 0;
};

struct Supervised {
  std::string title;            ///< what ps(1) and pkill(1) see of the second process
  bool reads_terminal = false;  ///< somebody below reads hvlrun's standard input
  /// Runs in the second process; `front` is a pipe from the first: a byte per signal that it
  /// received; its end means that the front process is gone. Returns the exit status.
  std::function<int(net::UniqueFd front)> run;
};

/// Returns the exit status in both processes: each has to exit with what it gets.
int RunSupervised(const Supervised& supervised, const CommandLine& command_line);

}  // namespace hvl::launcher
