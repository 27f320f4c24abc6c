// Finds the MPI library of this process and the plug-in that speaks its binary interface.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "csrc/plugin/mpi.h"
#include "horovodlite/status.h"

namespace hvl::plugin {

struct MpiLibrary {
  /// Which constants and handles it has: "openmpi" (Open MPI 3 to 5), "mpich" (MPICH, Intel MPI,
  /// MVAPICH and others of the MPICH ABI initiative) or "abi" (the ABI of MPI 5.0).
  std::string family;
  std::string path;
  std::string version;  ///< first line of what it says about itself
};

/// The library that the process has loaded already, or else loads one, so that its names are
/// visible to the plug-in: `wanted` where that is not empty, else the one that belongs to the
/// launcher of this process, else what the dynamic loader finds. NotSupported when there is none,
/// when there are two, or when it is not `wanted`.
Result<MpiLibrary> OpenMpiLibrary(const std::string& wanted);

/// Opens both. `folder`: where the plug-ins are.
Result<Mpi*> OpenMpi(const std::string& folder, const std::string& wanted_library,
                     const Logger& logger);

/// The families that there are plug-ins for.
std::vector<std::string> MpiFamilies(const std::string& folder);

}  // namespace hvl::plugin
