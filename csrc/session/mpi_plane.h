// The data plane over MPI, which is in a plug-in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/base/log.h"
#include "csrc/collective/backend.h"
#include "csrc/config/config.h"
#include "csrc/net/mesh.h"
#include "csrc/plugin/mpi.h"
#include "horovodlite/status.h"

namespace hvl::session {

/// Opens the plug-in for the MPI of this process.
Result<plugin::Mpi*> OpenMpiPlugin(const config::Config& config, const Logger& logger);

/// Opens the plug-in and makes a data plane of the ranks of `mesh`. Collective, as
/// plugin::Mpi::CreateBackend. `group_ends`: in which to sum (tensor::Reduce).
Result<std::unique_ptr<collective::Backend>> MakeMpiPlane(const config::Config& config,
                                                          net::Mesh& mesh,
                                                          std::vector<int> group_ends,
                                                          const Logger& logger);

}  // namespace hvl::session
