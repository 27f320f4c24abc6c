// Knowing when a peer's process ends, and how. A socket alone does not tell: a forked child that
// outlives the process holds its sockets open.
#pragma once

#include <sys/types.h>
#include <optional>
#include <string>
#include <string_view>

#include "csrc/net/fd.h"

namespace hvl::net {

/// Names this boot of this machine together with this process-id namespace: two processes with the
/// same text mean the same process by the same number. Empty when the kernel does not tell.
std::string PidScope();

/// Names this boot of this machine together with this network namespace: two processes with the
/// same text reach each other by abstract Unix sockets, and so can share memory.
std::string HostId();

/// What the machine calls itself; for messages only, because several may have the same name.
std::string HostName();

/// The nearest process above this one whose short name (15 bytes of it) is `name`; nothing when
/// there is none, or /proc does not tell.
std::optional<pid_t> AncestorNamed(std::string_view name);

/// A descriptor that becomes readable when the process ends. Invalid when there is no such
/// process, or the kernel has no pidfd (before Linux 5.3).
UniqueFd WatchProcess(pid_t pid);

/// True when the watched process has ended; waits at most `wait_ms` for that.
bool ProcessEnded(int pidfd, int wait_ms);

/// "was killed by signal 9 (Killed)", "exited with code 1", or "ended" where the kernel does not
/// say. Requires ProcessEnded.
std::string DescribeEnd(pid_t pid, int pidfd);

}  // namespace hvl::net
