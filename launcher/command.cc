#include "launcher/command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "csrc/base/str.h"
#include "launcher/errors.h"
#include "launcher/exit_status.h"

namespace hvl::launcher {
namespace {

/// 0 when `path` is a file that this user may execute, else an errno.
int WhyNotExecutable(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  if (::access(path.c_str(), X_OK) != 0) return errno;
  return 0;
}

Refusal Failed(const std::string& name, int error) {
  if (error == ENOENT || error == ENOTDIR) {
    return {kExitNotFound, Format("command not found: '{}' does not exist", name)};
  }
  std::string cure;
  if (error == EACCES && name.ends_with(".py")) {
    cure = Format("; a script needs its interpreter: python {}", name);
  } else if (error == EACCES) {
    cure = Format("; is it meant to be a program? then: chmod +x {}", name);
  }
  return {kExitCannotExec, Format("cannot execute '{}': {}{}", name, ErrnoText(error), cure)};
}

Refusal NotInPath(const std::string& name) {
  std::string cure;
  struct stat info{};
  if (::stat(name.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
    cure = name.ends_with(".py") ? Format("; did you mean: python {}", name)
                                 : Format("; did you mean: ./{}", name);
  }
  return {kExitNotFound, Format("command not found: no '{}' in PATH{}", name, cure)};
}

}  // namespace

Refusal FindProgram(const std::string& name, std::string_view search_path, std::string* found) {
  *found = name;
  if (name.empty()) return Failed(name, ENOENT);
  if (name.find('/') != std::string::npos) {
    const int error = WhyNotExecutable(name);
    return error == 0 ? Refusal{} : Failed(name, error);
  }
  std::string refused;  // found, but not executable: only if nothing better follows
  for (std::size_t at = 0; at <= search_path.size();) {
    const std::size_t colon = std::min(search_path.find(':', at), search_path.size());
    const std::string_view folder = search_path.substr(at, colon - at);
    *found = folder.empty() ? "./" + name : Format("{}/{}", folder, name);
    const int error = WhyNotExecutable(*found);
    if (error == 0) return {};
    if (error == EACCES && refused.empty()) refused = *found;
    at = colon + 1;
  }
  return refused.empty() ? NotInPath(name) : Failed(refused, EACCES);
}

}  // namespace hvl::launcher
