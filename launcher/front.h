// The process that the user started: it passes signals on, and it is the second keeper of the job.
//
// hvlrun is two processes. The front one stays where the user put it: in the shell's job, at the
// terminal. Its child, the supervisor, runs the job in a session of its own, so that nothing a
// terminal or a shell sends reaches ranks except through hvlrun, once. Each watches the other:
//   front gone       -> its end of the pipe closes -> the supervisor kills the job and ends;
//   supervisor gone  -> the kernel kills the ranks (PDEATHSIG); the front process, a reaper too,
//                       adopts and kills whatever else is left.
#pragma once

#include "launcher/job.h"

namespace hvl::launcher {

/// The memory of this process's command line, where ps(1) reads it.
struct CommandLine {
  char** argv = nullptr;
  int argc = 0;
};

/// Runs the job and returns hvlrun's exit status. Returns in both processes: each has to exit with
/// what it gets.
int RunJob(const Job& job, const CommandLine& command_line);

}  // namespace hvl::launcher
