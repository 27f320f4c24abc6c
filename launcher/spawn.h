// Starts one rank: a process in its own group that dies when this one does.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "csrc/net/fd.h"
#include "launcher/env_block.h"
#include "launcher/exit_status.h"
#include "launcher/processors.h"

namespace hvl::launcher {

struct SpawnRequest {
  std::string path;
  std::vector<std::string> arguments;  ///< with the name it was called by first
  EnvBlock* env = nullptr;
  int stdin_fd = 0;
  int stdout_fd = 1;
  int stderr_fd = 2;
  Processors processors;  ///< that the rank may run on; empty = as this process
  int group_fd = -1;      ///< control group to start it in, where the kernel can; -1 = our own
};

/// Descriptors that hvlrun holds per rank: the pipes of its output, and its pidfd.
inline constexpr unsigned kFilesPerRank = 3;

struct Child {
  pid_t pid = 0;
  net::UniqueFd pidfd;    ///< readable when the process has ended; invalid before Linux 5.3
  bool in_group = false;  ///< it was started in the group that was asked for
};

/// What a process inherits and a launcher changes for itself; ranks get it back.
struct ProcessDefaults {
  unsigned long max_open_files = 0;  ///< the soft limit; 0 = as it is
};

/// Three descriptors per rank and more: takes what the system allows. Returns the limit before, or
/// 0.
unsigned long RaiseOpenFiles();

/// Must be called from the thread that lives as long as the ranks shall: the kernel kills a rank
/// when the thread that forked it ends. Returns when the program runs or the kernel has refused it.
/// Signals are unblocked in the child and have their default meaning, except that an ignored SIGHUP
/// stays ignored (nohup).
Refusal Spawn(const SpawnRequest& request, const ProcessDefaults& defaults, Child* child);

}  // namespace hvl::launcher
