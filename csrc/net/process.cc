#include "csrc/net/process.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "csrc/base/str.h"

namespace hvl::net {
namespace {

// PIDFD_GET_INFO of Linux 6.15, which the headers of the systems we build on do not have yet. It
// knows the wait status of a process whose parent has already collected it.
struct PidfdInfo {
  std::uint64_t mask = 0;
  std::uint64_t cgroup_id = 0;
  std::array<std::uint32_t, 11> ids{};
  std::int32_t exit_code = 0;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);
constexpr std::uint64_t kPidfdInfoExit = 1U << 3;

std::optional<int> WaitStatusFromPidfd(int pidfd) {
  PidfdInfo info;
  info.mask = kPidfdInfoExit;
  if (::ioctl(pidfd, kPidfdGetInfo, &info) != 0 || (info.mask & kPidfdInfoExit) == 0) return {};
  return info.exit_code;
}

/// /proc/<pid>/stat: the short name, and what follows it. Empty when there is no such process.
struct ProcStat {
  std::string name, fields;
};

ProcStat ReadStat(pid_t pid) {
  std::ifstream file(Format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const std::size_t begin = line.find('(');
  const std::size_t end = line.rfind(')');  // the name may hold blanks and parentheses
  if (begin == std::string::npos || end == std::string::npos) return {};
  return {line.substr(begin + 1, end - begin - 1), line.substr(end + 1)};
}

std::string BootId() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot;
}

/// "net:[4026531840]"; empty when the kernel does not tell.
std::string NamespaceOf(std::string_view kind) {
  std::array<char, 64> space{};
  const ssize_t length =
      ::readlink(Format("/proc/self/ns/{}", kind).c_str(), space.data(), space.size());
  return {space.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

// The last field of /proc/<pid>/stat is the wait status, while nobody has collected it (state Z).
std::optional<int> WaitStatusFromProc(pid_t pid) {
  std::istringstream fields(ReadStat(pid).fields);
  std::string field;
  if (!(fields >> field) || field != "Z") return {};
  while (fields >> field) {
  }
  int status = 0;
  const char* const end = field.data() + field.size();
  if (std::from_chars(field.data(), end, status).ptr != end) return {};
  return status;
}

}  // namespace

std::string PidScope() {
  const std::string boot = BootId();
  const std::string space = NamespaceOf("pid");
  if (boot.empty() || space.empty()) return {};
  return Format("{}/{}", boot, space);
}

std::string HostId() {
  const std::string boot = BootId();
  return Format("{}/{}", boot.empty() ? HostName() : boot, NamespaceOf("net"));
}

std::string HostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "(unknown)";
}

std::optional<pid_t> AncestorNamed(std::string_view name) {
  for (pid_t pid = ::getppid(); pid > 0;) {
    const ProcStat stat = ReadStat(pid);
    if (stat.name == name) return pid;
    std::istringstream fields(stat.fields);
    std::string state;
    if (!(fields >> state >> pid)) return std::nullopt;
  }
  return std::nullopt;
}

UniqueFd WatchProcess(pid_t pid) {
  if (pid <= 0) return {};
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

bool ProcessEnded(int pidfd, int wait_ms) {
  pollfd watched{pidfd, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&watched, 1, wait_ms);
  } while (ready < 0 && errno == EINTR);
  return ready == 1;
}

std::string DescribeEnd(pid_t pid, int pidfd) {
  std::optional<int> status = WaitStatusFromProc(pid);
  if (!status.has_value()) status = WaitStatusFromPidfd(pidfd);
  if (!status.has_value()) return "ended";
  if (WIFSIGNALED(*status)) {
    const int signal = WTERMSIG(*status);
    const char* const name = ::sigdescr_np(signal);
    return Format("was killed by signal {} ({})", signal, name == nullptr ? "unknown" : name);
  }
  return Format("exited with code {}", WEXITSTATUS(*status));
}

}  // namespace hvl::net
