#include "launcher/job_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "launcher/errors.h"
#include "launcher/file.h"

namespace hvl::launcher {
namespace {

constexpr std::string_view kPrefix = "hvl-";
constexpr Duration kRemoveLimit = std::chrono::seconds(1);
constexpr int kRetryMs = 10;

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

struct GroupMount {
  std::string_view root;  ///< of the hierarchy: what is mounted
  std::string_view at;
};

/// "36 35 98:0 /root /at options fields... - type source options"
std::optional<GroupMount> FindMount(std::string_view mounts) {
  for (const std::string_view line : Split(mounts, '\n')) {
    const std::vector<std::string_view> fields = Split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 2 || *(dash + 1) != "cgroup2") continue;
    return GroupMount{fields[3], fields[4]};
  }
  return std::nullopt;
}

bool WriteTo(const std::string& path, std::string_view text) {
  const net::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file.valid() &&
         ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

void KillGroup(const std::string& folder) { WriteTo(folder + "/cgroup.kill", "1"); }

/// With the groups that ranks have made in it; false while somebody is in there.
bool RemoveGroup(const std::string& folder) {
  if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) return true;
  std::error_code failed;
  std::filesystem::directory_iterator entry(folder, failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    std::error_code unknown;
    if (entry->is_directory(unknown)) RemoveGroup(entry->path().string());
  }
  return ::rmdir(folder.c_str()) == 0 || errno == ENOENT;
}

/// Waits until the group has gained its first process or lost its last, or for so long.
void AwaitChange(const std::string& folder, int limit_ms) {
  const net::UniqueFd events(::open((folder + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  pollfd entry{.fd = events.get(), .events = POLLPRI, .revents = 0};
  ::poll(&entry, 1, limit_ms);
}

/// Who is killed takes a moment to go.
void EndGroup(const std::string& folder, Duration limit) {
  const TimePoint give_up = SteadyClock().Now() + limit;
  while (!RemoveGroup(folder)) {
    if (SteadyClock().Now() >= give_up) return;
    KillGroup(folder);
    AwaitChange(folder, kRetryMs);
  }
}

std::string OwnFolder() {
  return OwnGroupFolder(ReadFile("/proc/self/cgroup").value_or(""),
                        ReadFile("/proc/self/mountinfo").value_or(""));
}

/// The groups in this folder.
std::vector<std::string> JobGroups(const std::string& own) {
  std::vector<std::string> names;
  std::error_code failed;
  std::filesystem::directory_iterator entry(own, failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    std::string name = entry->path().filename().string();
    if (name.starts_with(kPrefix)) names.push_back(std::move(name));
  }
  return names;
}

/// The supervisor's pid in "hvl-<job>-<pid>-<number>"; 0 = this is no such name.
pid_t MakerOf(std::string_view name) {
  const std::vector<std::string_view> words = Split(name, '-');
  pid_t pid = 0;
  if (words.size() == 4) std::from_chars(words[2].data(), words[2].data() + words[2].size(), pid);
  return pid;
}

/// Removes empty groups whose makers could not: both processes of hvlrun were killed at once.
/// Should one belong to a job that just starts in another PID namespace, that job does without.
void RemoveEmptyGroups(const std::string& own) {
  for (const std::string& name : JobGroups(own)) {
    const pid_t maker = MakerOf(name);
    const bool is_dead = maker > 0 && ::kill(maker, 0) != 0 && errno == ESRCH;
    if (is_dead) ::rmdir(Format("{}/{}", own, name).c_str());
  }
}

}  // namespace

std::string OwnGroupFolder(std::string_view self, std::string_view mounts) {
  const std::optional<GroupMount> mount = FindMount(mounts);
  if (!mount) return "";
  for (std::string_view line : Split(self, '\n')) {
    if (!line.starts_with("0::/")) continue;
    std::string_view path = line.substr(3);
    // A container may see a part of the hierarchy only, mounted as if it were all.
    if (mount->root != "/") {
      const bool inside = path.starts_with(mount->root) &&
                          (path.size() == mount->root.size() || path[mount->root.size()] == '/');
      if (!inside) return "";
      path.remove_prefix(mount->root.size());
    }
    if (path == "/") path = "";
    // "/.." stands before groups outside of this process's namespace.
    if (path.find("/..") != std::string_view::npos) return "";
    return Format("{}{}", mount->at, path);
  }
  return "";
}

std::string GroupMark(pid_t supervisor, int line) {
  struct stat facts{};
  if (::fstat(line, &facts) != 0) return "";
  return Format("-{}-{}", supervisor, static_cast<unsigned long>(facts.st_ino));
}

Result<std::unique_ptr<JobGroup>> JobGroup::Make(const std::string& job_id,
                                                 const std::string& mark) {
  const std::string own = OwnFolder();
  if (job_id.find('/') != std::string::npos) return Invalid("a job is named by one word");
  if (own.empty()) {
    return Status(StatusCode::kNotSupported, "no control groups of the second generation here");
  }
  RemoveEmptyGroups(own);
  std::string folder = Format("{}/{}{}{}", own, kPrefix, job_id, mark);
  if (::mkdir(folder.c_str(), 0755) != 0) {
    return Status(StatusCode::kNotSupported,
                  Format("cannot make the control group '{}': {}", folder, ErrnoText(errno)));
  }
  net::UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string type = ReadFile(folder + "/cgroup.type").value_or("");
  // Before Linux 5.14 nothing kills a group, and below a threaded one there are no processes.
  const bool fits = ::access((folder + "/cgroup.kill").c_str(), W_OK) == 0 &&
                    type.starts_with("domain") && !type.starts_with("domain invalid");
  if (fd.valid() && fits) {
    return std::unique_ptr<JobGroup>(new JobGroup(std::move(folder), std::move(fd)));
  }
  RemoveGroup(folder);
  return Status(StatusCode::kNotSupported,
                Format("control groups in '{}' cannot be ended as a whole", own));
}

JobGroup::JobGroup(std::string folder, net::UniqueFd folder_fd)
    : folder_(std::move(folder)), folder_fd_(std::move(folder_fd)) {}

JobGroup::~JobGroup() { EndGroup(folder_, kRemoveLimit); }

void JobGroup::Kill() const { KillGroup(folder_); }

void EndLeftGroups(const std::string& mark, Duration limit) {
  const std::string own = OwnFolder();
  if (own.empty() || mark.empty()) return;
  for (const std::string& name : JobGroups(own)) {
    if (!name.ends_with(mark)) continue;
    const std::string folder = Format("{}/{}", own, name);
    KillGroup(folder);
    EndGroup(folder, limit);
  }
}

}  // namespace hvl::launcher
