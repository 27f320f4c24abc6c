// What this build and this process can do with MPI. Local; any thread.
#pragma once

#include <string>
#include <vector>

namespace hvl {

/// The kinds of MPI that there are plug-ins for: "openmpi", "mpich", "abi". Empty: this build has
/// no support for MPI.
std::vector<std::string> MpiFamilies();

/// Whether the MPI of this process lets several threads call it at once. False before the first
/// session over MPI.
bool MpiThreadsSupported();

}  // namespace hvl
