// The header of the MPI that this copy of the plug-in is compiled for.
#pragma once

// Neither has its C++ bindings, which are deprecated, any use here.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#ifdef HVL_MPI_STANDARD_ABI
#include <mpi_abi.h>
#else
#include <mpi.h>
#endif

#include <string_view>

#include "horovodlite/status.h"

namespace hvl::mpi {

/// What an MPI function has returned, as a Status: Unavailable with MPI's own words, because what
/// remains to go wrong in a call with checked arguments is a link or a peer.
Status MpiStatus(int code, std::string_view call);

}  // namespace hvl::mpi
