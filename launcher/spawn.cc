#include "launcher/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "csrc/base/str.h"
#include "launcher/errors.h"

namespace hvl::launcher {
namespace {

void RestoreSignals() {
  for (const int signo : {SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGXFSZ, SIGCHLD, SIGUSR1, SIGUSR2,
                          SIGTSTP, SIGCONT, SIGTTIN, SIGTTOU}) {
    ::signal(signo, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

void RestoreLimit(unsigned long max_open_files) {
  rlimit limit{};
  if (max_open_files == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = max_open_files;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Everything between fork and exec. Other threads may have held any lock when we forked, so only
/// system calls from here on.
[[noreturn]] void BecomeRank(const SpawnRequest& request, char* const* argv, char* const* envp,
                             const std::vector<unsigned long>& mask,
                             const ProcessDefaults& defaults, pid_t parent, int error_fd) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above; then nobody would kill us.
  if (::getppid() != parent) ::_exit(kExitLauncherError);
  RestoreLimit(defaults.max_open_files);
  // These processors are among our own. Should somebody take some away at this very moment, the
  // kernel cuts the mask or leaves ours: slower at worst, so the rank starts all the same.
  if (!mask.empty()) {
    ::sched_setaffinity(0, mask.size() * sizeof mask[0],
                        reinterpret_cast<const cpu_set_t*>(mask.data()));
  }
  const bool ready = ::dup2(request.stdin_fd, STDIN_FILENO) >= 0 &&
                     ::dup2(request.stdout_fd, STDOUT_FILENO) >= 0 &&
                     ::dup2(request.stderr_fd, STDERR_FILENO) >= 0;
  RestoreSignals();
  if (ready) ::execve(request.path.c_str(), argv, envp);
  const int error = errno;
  // A short write is impossible on an empty pipe; if it is gone, so is who wants to know.
  [[maybe_unused]] const ssize_t written = ::write(error_fd, &error, sizeof error);
  ::_exit(kExitCannotExec);
}

/// As fork(), into a control group if there is one: to move a process there later makes all of the
/// machine's forks wait. The child may only make system calls, which it is bound to anyway.
pid_t ForkInto(int group_fd, bool* in_group) {
  // clone_args of Linux 5.7, which older headers do not have.
  struct CloneArguments {
    std::uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size, cgroup;
  };
  constexpr std::uint64_t kIntoCgroup = 0x200000000;
  if (group_fd >= 0) {
    CloneArguments arguments{};
    arguments.flags = kIntoCgroup;
    arguments.exit_signal = SIGCHLD;
    arguments.cgroup = static_cast<std::uint64_t>(group_fd);
    const auto pid = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
    *in_group = pid >= 0;
    if (pid >= 0) return pid;
  }
  return ::fork();
}

Refusal Refused(const std::string& path, int error) {
  if (error == ENOENT) {
    return {kExitNotFound, Format("cannot execute '{}': {} (is the interpreter of its first line "
                                  "there?)",
                                  path, ErrnoText(error))};
  }
  if (error == ENOEXEC) {
    return {kExitCannotExec, Format("cannot execute '{}': it is no program; a script needs a first "
                                    "line like #!/bin/sh",
                                    path)};
  }
  if (error == E2BIG) {
    return {kExitCannotExec, Format("cannot execute '{}': arguments and environment are too long "
                                    "together, or one variable is longer than 128 KiB",
                                    path)};
  }
  return {kExitCannotExec, Format("cannot execute '{}': {}", path, ErrnoText(error))};
}

/// The errno of the child's exec, 0 when it worked. Blocks until one is known.
int ReadExecError(int fd) {
  int error = 0;
  ssize_t count = 0;
  do {
    count = ::read(fd, &error, sizeof error);
  } while (count < 0 && errno == EINTR);
  return count == static_cast<ssize_t>(sizeof error) ? error : 0;
}

}  // namespace

unsigned long RaiseOpenFiles() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return before;
}

Refusal Spawn(const SpawnRequest& request, const ProcessDefaults& defaults, Child* child) {
  std::vector<char*> argv;
  for (const std::string& word : request.arguments) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const std::vector<char*> envp = request.env->Pointers();
  const std::vector<unsigned long> mask = AffinityMask(request.processors);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    return {kExitLauncherError, Format("cannot make a pipe: {}; see ulimit -n", ErrnoText(errno))};
  }
  const net::UniqueFd error_in(pipe[0]);
  net::UniqueFd error_out(pipe[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ForkInto(request.group_fd, &child->in_group);
  if (pid < 0) {
    return {kExitLauncherError,
            Format("cannot start a process: {}; see ulimit -u", ErrnoText(errno))};
  }
  if (pid == 0)
    BecomeRank(request, argv.data(), envp.data(), mask, defaults, parent, error_out.get());
  ::setpgid(pid, pid);  // both sides do it, because either may be first
  child->pid = pid;
  child->pidfd = net::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  error_out.Reset();
  const int error = ReadExecError(error_in.get());
  if (error == 0) return {};
  ::waitpid(pid, nullptr, 0);
  child->pid = 0;
  child->pidfd.Reset();
  return Refused(request.path, error);
}

}  // namespace hvl::launcher
