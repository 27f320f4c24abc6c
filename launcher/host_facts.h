// What this machine allows a job, as far as it can be read without starting one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options.h"
#include "launcher/python_facts.h"
#include "launcher/topology.h"

namespace hvl::launcher {

/// A limit of the system; nothing = unlimited.
using Limit = std::optional<std::uint64_t>;

struct SharedFolder {
  bool exists = false;
  bool writable = false;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
};

struct HostFacts {
  std::string kernel;
  Topology cores;
  std::optional<double> quota;  ///< of processor time, in processors
  std::uint64_t memory_bytes = 0;
  std::uint64_t available_bytes = 0;  ///< without swapping
  Limit memory_limit;                 ///< of the control group
  SharedFolder shm;                   ///< /dev/shm
  std::string memfd_error;            ///< "" = sealed shared memory works
  std::string socket_error;           ///< "" = ranks can meet, and the loopback is up
  bool has_pidfd = false;
  bool has_proc = false;
  Limit locked_memory;
  Limit open_files;  ///< hard limit: hvlrun raises its own
  Limit open_files_of_ranks;
  Limit processes;                ///< threads included, of this user; the superuser has no limit
  Limit group_processes;          ///< that the control group has left
  std::string huge_pages;         ///< "always", "madvise", "never"; "" = unknown
  std::string shared_huge_pages;  ///< the same for shared memory
  std::string clock_source;
  std::int64_t seconds_since_1970 = 0;
  std::string command;  ///< first word; "" = none was given
  PythonFacts python;   ///< that the command starts, else the python3 of PATH
};

HostFacts CollectHostFacts(const Options& options, const EnvBlock& environment);

}  // namespace hvl::launcher
