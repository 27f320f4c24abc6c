#include "launcher/exit_status.h"

#include <sys/wait.h>

#include <csignal>

#include "csrc/base/str.h"

namespace hvl::launcher {

ExitStatus ExitStatus::FromWait(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return {.code = 0,
            .signal = WTERMSIG(wait_status),
            .core_dumped = WCOREDUMP(wait_status) != 0,
            .lost = false};
  }
  return {.code = WEXITSTATUS(wait_status), .signal = 0, .core_dumped = false, .lost = false};
}

std::string SignalName(int signo) {
  // sigabbrev_np() would do, but not in the older C libraries that a wheel has to run on.
  switch (signo) {
#define HVL_SIGNAL(name) \
  case name:             \
    return #name;
    HVL_SIGNAL(SIGHUP)
    HVL_SIGNAL(SIGINT)
    HVL_SIGNAL(SIGQUIT)
    HVL_SIGNAL(SIGILL)
    HVL_SIGNAL(SIGTRAP)
    HVL_SIGNAL(SIGABRT)
    HVL_SIGNAL(SIGBUS)
    HVL_SIGNAL(SIGFPE)
    HVL_SIGNAL(SIGKILL)
    HVL_SIGNAL(SIGUSR1)
    HVL_SIGNAL(SIGSEGV)
    HVL_SIGNAL(SIGUSR2)
    HVL_SIGNAL(SIGPIPE)
    HVL_SIGNAL(SIGALRM)
    HVL_SIGNAL(SIGTERM)
    HVL_SIGNAL(SIGSTKFLT)
    HVL_SIGNAL(SIGCHLD)
    HVL_SIGNAL(SIGCONT)
    HVL_SIGNAL(SIGSTOP)
    HVL_SIGNAL(SIGTSTP)
    HVL_SIGNAL(SIGTTIN)
    HVL_SIGNAL(SIGTTOU)
    HVL_SIGNAL(SIGURG)
    HVL_SIGNAL(SIGXCPU)
    HVL_SIGNAL(SIGXFSZ)
    HVL_SIGNAL(SIGVTALRM)
    HVL_SIGNAL(SIGPROF)
    HVL_SIGNAL(SIGWINCH)
    HVL_SIGNAL(SIGIO)
    HVL_SIGNAL(SIGPWR)
    HVL_SIGNAL(SIGSYS)
#undef HVL_SIGNAL
    default:
      return Format("signal {}", signo);
  }
}

std::string Describe(const ExitStatus& status) {
  if (status.lost) return "lost with its host";
  if (status.signal == 0) return Format("exit code {}", status.code);
  return Format("{} (signal {}{})", SignalName(status.signal), status.signal,
                status.core_dumped ? ", core dumped" : "");
}

}  // namespace hvl::launcher
