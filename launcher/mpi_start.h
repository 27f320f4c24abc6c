// hvlrun --mpi: hvlrun becomes the MPI launcher of this machine, which starts the ranks and ends
// them in its own way. What is decided here is its command line and environment.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "horovodlite/status.h"
#include "launcher/env_block.h"
#include "launcher/exit_status.h"
#include "launcher/job.h"

namespace hvl::launcher {

/// Launchers by how their options are called.
enum class MpiKind : std::uint8_t { kOpenMpi4, kOpenMpi5, kHydra, kIntel, kSlurm };

struct MpiLauncher {
  MpiKind kind = MpiKind::kOpenMpi4;
  std::string program;  ///< path
  std::string version;  ///< first line of what it says about itself
};

/// From what `program --version` prints. NotSupported quotes it when it is none of the known ones.
Result<MpiLauncher> RecogniseMpi(const std::string& program, std::string_view version_text);

/// mpirun of PATH, or mpiexec; in an allocation of Slurm without both, srun. Asks it for its
/// version. NotSupported when there is none.
Result<MpiLauncher> FindMpi(const EnvBlock& env);

struct MpiCommand {
  std::vector<std::string> words;
  EnvBlock env;  ///< of the launcher, which gives it to the ranks
  std::vector<std::string> warnings;
};

/// Pure but for the topology of this machine. InvalidArgument when the job asks for something that
/// the launcher cannot do. `is_root`: who starts it.
Result<MpiCommand> MpiCommandOf(const Job& job, const MpiLauncher& launcher, bool is_root);

/// For --dry-run: the exact command, as a shell takes it, and the variables that are added.
std::string DescribeMpi(const Job& job, const MpiCommand& command);

/// Replaces this process. Returns only when that fails.
Refusal BecomeMpi(MpiCommand command, bool reads_stdin);

}  // namespace hvl::launcher
