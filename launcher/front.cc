#include "launcher/front.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/base/clock.h"
#include "csrc/base/str.h"
#include "csrc/net/fd.h"
#include "launcher/errors.h"
#include "launcher/exit_status.h"
#include "launcher/job_group.h"
#include "launcher/process_tree.h"

namespace hvl::launcher {
namespace {

constexpr auto kPassedOn =
    std::to_array<int>({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT});
// The first interrupt asks the ranks to end, the second kills them; whoever needs a third has a
// supervisor that does not answer.
constexpr int kInterruptsToGiveUp = 3;
constexpr Duration kSweepLimit = std::chrono::seconds(5);
constexpr int kSweepIntervalMs = 50;

void Complain(const std::string& text) {
  const std::string line = Format("hvlrun: {}\n", text);
  // Standard error is the last place there is; when it is gone, the exit status has to do.
  [[maybe_unused]] const ssize_t count = ::write(STDERR_FILENO, line.data(), line.size());
}

bool IgnoredAtStart(int signo) {
  struct sigaction action{};
  return ::sigaction(signo, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// The supervisor has a title of its own so that `pkill hvlrun` meets the front process only and
/// the supervisor cleans up.
void SetTitle(const CommandLine& line, const std::string& title) {
  ::prctl(PR_SET_NAME, title.c_str());
  char* begin = line.argv[0];
  const char* last = line.argv[line.argc - 1];
  const std::size_t room = static_cast<std::size_t>(last - begin) + std::strlen(last);
  const std::size_t length = std::min(room, title.size());
  std::fill_n(begin, room, '\0');
  std::copy_n(title.begin(), length, begin);
}

/// Remembers how the terminal was set, because a rank that reads it may be killed at a prompt.
class TerminalGuard {
 public:
  explicit TerminalGuard(bool wanted) {
    if (!wanted || ::isatty(STDIN_FILENO) != 1) return;
    // In the background this stops us, as any program that reads the terminal.
    if (::tcgetpgrp(STDIN_FILENO) != ::getpgrp()) ::kill(0, SIGTTIN);
    saved_ = ::tcgetattr(STDIN_FILENO, &settings_) == 0;
  }
  ~TerminalGuard() {
    if (!saved_ || ::tcgetpgrp(STDIN_FILENO) != ::getpgrp()) return;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &settings_);
  }
  TerminalGuard(const TerminalGuard&) = delete;
  TerminalGuard& operator=(const TerminalGuard&) = delete;

 private:
  bool saved_ = false;
  termios settings_{};
};

/// The signals that the front process takes over, blocked and readable from a descriptor.
class Signals {
 public:
  Signals() {
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    ::signal(SIGCHLD, SIG_DFL);  // ignored, it would reap the ranks before us
    ::signal(SIGPIPE, SIG_IGN);
    for (const int signo : kPassedOn) {
      const bool ignored = IgnoredAtStart(signo);
      if (ignored && (signo == SIGHUP || signo == SIGTSTP)) continue;  // nohup; no job control
      if (ignored) not_from_terminal_.push_back(signo);
      sigaddset(&taken, signo);
    }
    HVL_CHECK(::pthread_sigmask(SIG_BLOCK, &taken, nullptr) == 0);
    fd_ = net::UniqueFd(::signalfd(-1, &taken, SFD_CLOEXEC));
  }

  int fd() const { return fd_.get(); }

  /// Waits for the next signal; 0 = one to be ignored: a shell starts background jobs with SIGINT
  /// ignored, so that Ctrl-C spares them. kill(1) means it, though.
  int Next() const {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof info) != sizeof info) return 0;
    const int signo = static_cast<int>(info.ssi_signo);
    const bool ignored = std::find(not_from_terminal_.begin(), not_from_terminal_.end(), signo) !=
                         not_from_terminal_.end();
    return ignored && info.ssi_code > 0 ? 0 : signo;
  }

 private:
  std::vector<int> not_from_terminal_;
  net::UniqueFd fd_;
};

class Front {
 public:
  Front(pid_t supervisor, net::UniqueFd pipe, const Signals& signals,
        std::vector<ProcessInfo> strangers)
      : supervisor_(supervisor),
        pipe_(std::move(pipe)),
        signals_(signals),
        strangers_(std::move(strangers)) {}

  int Run() {
    std::optional<ExitStatus> end;
    while (!end) {
      const int signo = signals_.Next();
      if (signo == SIGCHLD) {
        end = Reap();
      } else if (signo != 0) {
        PassOn(signo);
      }
    }
    if (end->signal == 0) return end->code;
    Sweep();
    EndLeftGroups(GroupMark(supervisor_, pipe_.get()), kSweepLimit);
    Complain(
        Format("the supervisor of this job (pid {}) was ended by {}; all ranks have been "
               "stopped; exit code {}",
               supervisor_, Describe(*end), kExitLauncherError));
    return kExitLauncherError;
  }

 private:
  /// Reaps whatever has ended; returns how the supervisor ended, once it has.
  std::optional<ExitStatus> Reap() {
    std::optional<ExitStatus> end;
    for (;;) {
      int status = 0;
      const pid_t pid = ::waitpid(-1, &status, WNOHANG);
      if (pid <= 0) return end;
      if (pid == supervisor_) end = ExitStatus::FromWait(status);
    }
  }

  void PassOn(int signo) {
    const auto byte = static_cast<unsigned char>(signo);
    // A full pipe is a supervisor that does not answer: see kInterruptsToGiveUp.
    [[maybe_unused]] const ssize_t count = ::write(pipe_.get(), &byte, 1);
    if (signo == SIGINT && ++interrupts_ == kInterruptsToGiveUp) ::kill(supervisor_, SIGKILL);
    if (signo == SIGTSTP) ::raise(SIGSTOP);  // so that the shell sees its job stop
  }

  /// Kills everything below this process except what was here before the job.
  void Sweep() {
    const TimePoint give_up = SteadyClock().Now() + kSweepLimit;
    while (SteadyClock().Now() < give_up) {
      bool left = false;
      for (const ProcessInfo& process : Descendants(::getpid())) {
        const bool stranger =
            std::any_of(strangers_.begin(), strangers_.end(),
                        [&process](const ProcessInfo& other) { return other.Same(process); });
        if (stranger) continue;
        left = true;
        SignalProcess(process, SIGKILL);
      }
      Reap();
      if (!left) return;
      pollfd entry{.fd = signals_.fd(), .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, kSweepIntervalMs) == 1) signals_.Next();
    }
  }

  const pid_t supervisor_;
  const net::UniqueFd pipe_;
  const Signals& signals_;
  const std::vector<ProcessInfo> strangers_;
  int interrupts_ = 0;
};

}  // namespace

int RunSupervised(const Supervised& supervised, const CommandLine& command_line) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    Complain(Format("cannot make a pipe: {}", ErrnoText(errno)));
    return kExitLauncherError;
  }
  net::UniqueFd from_front(pipe[0]);
  net::UniqueFd to_supervisor(pipe[1]);
  const TerminalGuard terminal(supervised.reads_terminal);
  const Signals signals;
  // Children from before: of a shell that became hvlrun by exec.
  std::vector<ProcessInfo> strangers = Descendants(::getpid());
  BecomeReaper();
  const pid_t pid = ::fork();
  if (pid < 0) {
    Complain(Format("cannot start a process: {}; see ulimit -u", ErrnoText(errno)));
    return kExitLauncherError;
  }
  if (pid == 0) {
    to_supervisor.Reset();
    ::setsid();
    SetTitle(command_line, supervised.title);
    return supervised.run(std::move(from_front));
  }
  from_front.Reset();
  return Front(pid, std::move(to_supervisor), signals, std::move(strangers)).Run();
}

}  // namespace hvl::launcher
