#include "csrc/session/data_plane.h"

#include "csrc/collective/local.h"
#include "csrc/collective/tcp.h"
#include "csrc/session/mpi_plane.h"
#include "csrc/session/settings.h"

namespace hvl::session {

// `auto` is `local`: a mesh spans one host so far.
Result<std::unique_ptr<collective::Backend>> MakeDataPlane(const config::Config& config,
                                                           net::Mesh& mesh, const Logger& logger) {
  if (config.cpu_operations == config::CpuOperations::kMpi) {
    return MakeMpiPlane(config, mesh, logger);
  }
  if (config.cpu_operations == config::CpuOperations::kTcp) {
    HVL_ASSIGN_OR_RETURN(std::unique_ptr<collective::Backend> tcp,
                         collective::CreateTcpBackend(mesh, TcpOptions(config)));
    return tcp;
  }
  return collective::CreateLocalBackend(mesh, LocalOptions(config), logger);
}

}  // namespace hvl::session
