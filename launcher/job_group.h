// A control group (of the second generation) for the ranks of one host and whatever they start: one
// write ends them all, also what has left every session and every process tree.
//
// The group is a child of the launcher's own, which stays where it is, and no controller is enabled
// for it: so no limit changes, and the rule that processes live in leaves only does not apply.
// Where a user has no right to make one, the process tree (process_tree.h) does alone.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "csrc/base/clock.h"
#include "csrc/net/fd.h"
#include "horovodlite/status.h"

namespace hvl::launcher {

/// Where the group of this process is in the file system. `self` is the content of
/// /proc/self/cgroup, `mounts` that of /proc/self/mountinfo; "" when it is not to be seen there.
std::string OwnGroupFolder(std::string_view self, std::string_view mounts);

/// What the name of a group ends in: `supervisor` is the process that made it, `line` a descriptor
/// of the pipe between it and its front process, which no other pair has.
std::string GroupMark(pid_t supervisor, int line);

class JobGroup {
 public:
  /// In this process's own group; the error says why there cannot be one. Empty groups of
  /// supervisors that have died without removing theirs are removed meanwhile.
  static Result<std::unique_ptr<JobGroup>> Make(const std::string& job_id, const std::string& mark);
  /// Kills who is left, and removes the group; waits for at most a second.
  ~JobGroup();
  JobGroup(const JobGroup&) = delete;
  JobGroup& operator=(const JobGroup&) = delete;

  /// For clone3().
  int fd() const { return folder_fd_.get(); }
  const std::string& folder() const { return folder_; }
  /// SIGKILL to every process in the group.
  void Kill() const;

 private:
  JobGroup(std::string folder, net::UniqueFd folder_fd);

  const std::string folder_;
  const net::UniqueFd folder_fd_;
};

/// Ends and removes the groups that a supervisor with this mark has left behind, in this time.
void EndLeftGroups(const std::string& mark, Duration limit);

}  // namespace hvl::launcher
