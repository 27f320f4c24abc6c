#include "launcher/host_facts.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <sstream>

#include "csrc/base/str.h"
#include "csrc/net/fd.h"
#include "launcher/command.h"
#include "launcher/control_group.h"
#include "launcher/errors.h"
#include "launcher/file.h"

namespace hvl::launcher {
namespace {

constexpr std::uint64_t kKib = 1024;

Limit HardLimit(decltype(RLIMIT_NOFILE) what) {
  rlimit limit{};
  if (::getrlimit(what, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_max;
}

Limit SoftLimit(decltype(RLIMIT_NOFILE) what) {
  rlimit limit{};
  if (::getrlimit(what, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

/// The number after "Name:" in /proc/meminfo, in bytes.
std::uint64_t MemoryFact(const std::string& meminfo, std::string_view name) {
  const std::size_t at = meminfo.find(Format("{}:", name));
  if (at == std::string::npos) return 0;
  std::istringstream rest(meminfo.substr(at + name.size() + 1));
  std::uint64_t kib = 0;
  rest >> kib;
  return kib * kKib;
}

/// The limit that the file holds; "max" is none.
Limit ReadLimit(const std::string& path) {
  const std::optional<std::int64_t> number = ReadNumber(path);
  if (!number || *number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

/// The smallest limit of this process's control group and those around it.
Limit GroupLimit(const GroupFile& file) {
  Limit smallest;
  const std::string self = ReadFile("/proc/self/cgroup").value_or("");
  for (const std::string& path : GroupFiles(self, file)) {
    const Limit limit = ReadLimit(path);
    if (limit && (!smallest || *limit < *smallest)) smallest = limit;
  }
  return smallest;
}

/// How many more processes the control group takes.
Limit GroupProcessesLeft() {
  constexpr GroupFile kMax{.controller = "pids", .first = "pids.max", .second = "pids.max"};
  const std::string self = ReadFile("/proc/self/cgroup").value_or("");
  Limit least;
  for (const std::string& path : GroupFiles(self, kMax)) {
    const Limit most = ReadLimit(path);
    if (!most) continue;
    const std::string folder = path.substr(0, path.size() - kMax.first.size());
    const std::uint64_t used = std::min(*most, ReadLimit(folder + "pids.current").value_or(0));
    if (!least || *most - used < *least) least = *most - used;
  }
  return least;
}

SharedFolder LookAt(const std::string& path) {
  SharedFolder folder;
  struct statvfs info{};
  folder.exists = ::statvfs(path.c_str(), &info) == 0;
  if (!folder.exists) return folder;
  folder.total_bytes = std::uint64_t{info.f_blocks} * info.f_frsize;
  folder.free_bytes = std::uint64_t{info.f_bavail} * info.f_frsize;
  // A file without a name; where the file system knows no such thing, the permissions have to do.
  const net::UniqueFd file(::open(path.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  folder.writable =
      file.valid() || (errno == EOPNOTSUPP && ::access(path.c_str(), W_OK | X_OK) == 0);
  return folder;
}

/// Why memory cannot be shared as the runtime does it; "" when it can.
std::string TryMemfd() {
  constexpr off_t kBytes = 1 << 20;
  const net::UniqueFd file(::memfd_create("hvl-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return Format("memfd_create: {}", ErrnoText(errno));
  if (const int error = ::posix_fallocate(file.get(), 0, kBytes); error != 0) {
    return Format("allocating 1 MiB: {}", ErrnoText(error));
  }
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return Format("sealing it: {}", ErrnoText(errno));
  }
  return "";
}

/// Why ranks cannot meet; "" when they can.
std::string TrySockets() {
  const net::UniqueFd local(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un anywhere{};
  anywhere.sun_family = AF_UNIX;  // without a name the kernel makes one up
  if (!local.valid() || ::bind(local.get(), reinterpret_cast<const sockaddr*>(&anywhere),
                               sizeof anywhere.sun_family) != 0) {
    return Format("a Unix socket: {}", ErrnoText(errno));
  }
  const net::UniqueFd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof loopback;
  const net::UniqueFd peer(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto* address = reinterpret_cast<sockaddr*>(&loopback);
  if (!tcp.valid() || !peer.valid() || ::bind(tcp.get(), address, length) != 0 ||
      ::listen(tcp.get(), 1) != 0 || ::getsockname(tcp.get(), address, &length) != 0 ||
      ::connect(peer.get(), address, length) != 0) {
    return Format("a connection over 127.0.0.1: {}", ErrnoText(errno));
  }
  return "";
}

/// "madvise" of "always [madvise] never".
std::string Chosen(const std::string& path) {
  const std::string content = ReadFile(path).value_or("");
  const std::size_t open = content.find('[');
  const std::size_t close = content.find(']', std::min(open, content.size()));
  if (open == std::string::npos || close == std::string::npos) return "";
  return content.substr(open + 1, close - open - 1);
}

std::string FirstLine(const std::string& path) {
  const std::string content = ReadFile(path).value_or("");
  return content.substr(0, content.find('\n'));
}

void CollectPython(const Options& options, const EnvBlock& environment, HostFacts* facts) {
  std::string search_path(environment.Get("PATH").value_or(""));
  for (const EnvSetting& setting : options.exports) {
    if (setting.name == "PATH") search_path = setting.value;
  }
  if (!options.command.empty()) facts->command = options.command.front();
  const std::string name = IsPython(facts->command) ? facts->command : "python3";
  std::string found;
  if (FindProgram(name, search_path, &found).exit_code != 0) return;
  facts->python = AskPython(found, options.exports);
}

void CollectLimits(HostFacts* facts) {
  facts->locked_memory = SoftLimit(RLIMIT_MEMLOCK);
  facts->open_files = HardLimit(RLIMIT_NOFILE);
  facts->open_files_of_ranks = SoftLimit(RLIMIT_NOFILE);
  if (::geteuid() != 0) facts->processes = SoftLimit(RLIMIT_NPROC);
  facts->group_processes = GroupProcessesLeft();
  facts->memory_limit = GroupLimit(
      {.controller = "memory", .first = "memory.limit_in_bytes", .second = "memory.max"});
}

}  // namespace

HostFacts CollectHostFacts(const Options& options, const EnvBlock& environment) {
  HostFacts facts;
  utsname system{};
  ::uname(&system);
  facts.kernel = Format("{} {} {}", system.sysname, system.release, system.machine);
  facts.cores = ReadTopology("/sys/devices/system", AllowedProcessors());
  facts.quota = ProcessorQuota();
  const std::string meminfo = ReadFile("/proc/meminfo").value_or("");
  facts.memory_bytes = MemoryFact(meminfo, "MemTotal");
  facts.available_bytes = MemoryFact(meminfo, "MemAvailable");
  CollectLimits(&facts);
  facts.shm = LookAt("/dev/shm");
  facts.memfd_error = TryMemfd();
  facts.socket_error = TrySockets();
  const net::UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  facts.has_pidfd = self.valid();
  facts.has_proc = !FirstLine("/proc/self/stat").empty();
  const std::string huge = "/sys/kernel/mm/transparent_hugepage/";
  facts.huge_pages = Chosen(huge + "enabled");
  facts.shared_huge_pages = Chosen(huge + "shmem_enabled");
  facts.clock_source =
      FirstLine("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  facts.seconds_since_1970 = std::time(nullptr);
  CollectPython(options, environment, &facts);
  return facts;
}

}  // namespace hvl::launcher
