#include "launcher/attempts.h"

#include <utility>

#include "csrc/base/str.h"
#include "launcher/process_tree.h"
#include "launcher/runner.h"

namespace hvl::launcher {
int RunAttempts(const Job& job, net::UniqueFd front) {
  BecomeReaper();
  const ProcessDefaults defaults{.max_open_files = RaiseOpenFiles()};
  for (int restarts = 0;; ++restarts) {
    Runner runner(job, restarts, defaults, std::move(front));
    const int exit_code = runner.Run();
    if (restarts == job.options.max_restarts || !runner.may_restart()) return exit_code;
    runner.SayOnScreen(Format("starting all ranks again: restart {} of {}", restarts + 1,
                              job.options.max_restarts));
    if (!runner.may_restart()) return exit_code;  // told to stop meanwhile
    front = runner.TakeFront();
  }
}

}  // namespace hvl::launcher
