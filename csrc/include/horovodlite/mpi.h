// What this build and this process can do with MPI. Local; any thread.
#pragma once

#include <string>
#include <vector>

#include "horovodlite/export.h"

namespace hvl {

/// The kinds of MPI that there are plug-ins for: "openmpi", "mpich", "abi". Empty: this build has
/// no support for MPI.
HVL_API std::vector<std::string> MpiFamilies();

/// Whether the MPI of this process lets several threads call it at once. False before the first
/// session over MPI.
HVL_API bool MpiThreadsSupported();

}  // namespace hvl
