#include "csrc/session/data_plane.h"

#include <utility>
#include <vector>

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
  HVL_ASSIGN_OR_RETURN(const std::vector<int> group_ends, SumGroupEnds(config));
  if (config.cpu_operations == config::CpuOperations::kTcp) {
    collective::TcpOptions options = TcpOptions(config);
    options.group_ends = group_ends;
    HVL_ASSIGN_OR_RETURN(std::unique_ptr<collective::Backend> tcp,
                         collective::CreateTcpBackend(mesh, std::move(options)));
    return tcp;
  }
  collective::LocalOptions options = LocalOptions(config);
  options.group_ends = group_ends;
  return collective::CreateLocalBackend(mesh, options, logger);
}

}  // namespace hvl::session
