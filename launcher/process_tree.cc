#include "launcher/process_tree.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <map>
#include <sstream>
#include <string_view>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/net/fd.h"
#include "launcher/file.h"

namespace hvl::launcher {
namespace {

std::vector<pid_t> AllPids() {
  std::vector<pid_t> pids;
  std::error_code failed;
  std::filesystem::directory_iterator entry("/proc", failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && end == name.data() + name.size()) pids.push_back(pid);
  }
  return pids;
}

}  // namespace

std::optional<ProcessInfo> FindProcess(pid_t pid) {
  const std::optional<std::string> stat = ReadFile(Format("/proc/{}/stat", pid));
  if (!stat) return std::nullopt;
  // "pid (name) state ppid pgrp session ... starttime ...", where the name may hold anything.
  const std::string_view text(*stat);
  const std::size_t open = text.find('(');
  const std::size_t close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
    return std::nullopt;
  }
  ProcessInfo process;
  process.pid = pid;
  process.name = text.substr(open + 1, close - open - 1);
  std::istringstream fields{std::string(text.substr(close + 1))};
  fields >> process.state >> process.parent >> process.group;
  std::string skipped;
  for (int field = 6; field <= 21; ++field) fields >> skipped;  // numbered as in proc(5)
  fields >> process.start_ticks;
  if (!fields) return std::nullopt;
  return process;
}

void BecomeReaper() {
  HVL_CHECK(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "Linux 3.4 or later is needed");
}

std::vector<ProcessInfo> Children(const std::function<bool(pid_t)>& skip) {
  const pid_t self = ::getpid();
  std::vector<ProcessInfo> children;
  // The main thread forks and adopts. This file spares looking at all processes of the machine.
  const std::optional<std::string> list = ReadFile(Format("/proc/self/task/{}/children", self));
  if (!list) {
    for (ProcessInfo& process : Descendants(self)) {
      if (process.parent != self || (skip && skip(process.pid))) continue;
      children.push_back(std::move(process));
    }
    return children;
  }
  std::istringstream pids(*list);
  for (pid_t pid = 0; pids >> pid;) {
    if (skip && skip(pid)) continue;
    std::optional<ProcessInfo> process = FindProcess(pid);
    if (process && process->state != 'Z') children.push_back(*std::move(process));
  }
  return children;
}

std::vector<ProcessInfo> Descendants(pid_t root) {
  std::multimap<pid_t, ProcessInfo> by_parent;
  for (const pid_t pid : AllPids()) {
    const std::optional<ProcessInfo> process = FindProcess(pid);
    if (process) by_parent.emplace(process->parent, *process);
  }
  std::vector<ProcessInfo> found;
  std::vector<pid_t> parents = {root};
  while (!parents.empty()) {
    const pid_t parent = parents.back();
    parents.pop_back();
    const auto [begin, end] = by_parent.equal_range(parent);
    for (auto child = begin; child != end; ++child) {
      parents.push_back(child->second.pid);
      if (child->second.state != 'Z') found.push_back(child->second);
    }
  }
  return found;
}

bool SignalProcess(const ProcessInfo& process, int signo) {
  // The descriptor pins the process; only then is it certain that the number still means it.
  const net::UniqueFd pinned(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!pinned.valid() && errno != ENOSYS && errno != EPERM) return false;
  const std::optional<ProcessInfo> now = FindProcess(process.pid);
  if (!now || !now->Same(process)) return false;
  if (!pinned.valid()) return ::kill(process.pid, signo) == 0;  // before Linux 5.3
  return ::syscall(SYS_pidfd_send_signal, pinned.get(), signo, nullptr, 0) == 0;
}

}  // namespace hvl::launcher
