// Who started this process, where it was not hvlrun: mpirun, srun, torchrun, or a script that sets
// RANK and WORLD_SIZE. Called once per session, before the ranks look for each other.
#pragma once

#include <string>
#include <string_view>

#include "csrc/config/config.h"
#include "horovodlite/status.h"

namespace hvl::config {

struct Launch {
  /// "Open MPI", or "HVL_RANK" where the place was set by our own names; empty: nobody says.
  std::string_view family;
  /// What said so: "OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=4".
  std::string variables;
  /// Tells this job from the others on this host, and is the same for all of its ranks. Empty:
  /// no variable does.
  std::string job;
  /// The launcher's process above the ranks, which tells jobs apart where no variable does; or
  /// empty.
  std::string_view parent;
  /// The host of rank 0, by name or address, and a port of it for the ranks of several hosts to
  /// meet at; empty and 0: nobody says.
  std::string head;
  int head_port = 0;
  /// The launcher is MPI's, so that the ranks can find each other through MPI.
  bool is_mpi = false;
  /// Whether somebody said how many ranks are on this host.
  bool knows_host = true;
};

/// "node[01-03,7],x5" -> "node01": the first host of a list as Slurm writes it.
std::string FirstOfNodeList(std::string_view list);

/// HVL_RANK and HVL_SIZE come first and are believed alone. Without them the variables of the
/// known launchers count: rank, size and the local pair of `config` are set from them, and
/// HVL_LAUNCHER chooses where several are there. `config` is what Parse made of `env`.
///
/// InvalidArgument when two launchers disagree, when half of a place is missing, or when a number
/// is none or out of range: names variables, values and the cure.
///
/// Slurm is special in two ways. Its variables exist in batch scripts and interactive shells too,
/// where one process runs and not SLURM_NTASKS: they count only in a step that srun started. And
/// whatever runs in a step inherits them, so they give way to a launcher that says otherwise.
Result<Launch> FindLaunch(const EnvSource& env, Config* config);

}  // namespace hvl::config
