#include "csrc/session/data_plane.h"

#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/collective/host_layout.h"
#include "csrc/collective/local.h"
#include "csrc/collective/tcp.h"
#include "csrc/collective/two_level.h"
#include "csrc/session/mpi_plane.h"
#include "csrc/session/settings.h"

namespace hvl::session {

Result<std::unique_ptr<collective::Backend>> MakeDataPlane(const config::Config& config,
                                                           net::Mesh& mesh, const Logger& logger) {
  HVL_ASSIGN_OR_RETURN(std::vector<int> group_ends, SumGroupEnds(config));
  const std::vector<int> host_ends = collective::HostLayout(mesh.hosts()).ends();
  const std::size_t hosts = host_ends.size();
  if (group_ends.empty()) group_ends = host_ends;
  if (config.cpu_operations == config::CpuOperations::kMpi) {
    return MakeMpiPlane(config, mesh, std::move(group_ends), logger);
  }
  collective::LocalOptions local = LocalOptions(config);
  collective::TcpOptions tcp = TcpOptions(config);
  local.group_ends = group_ends;
  tcp.group_ends = group_ends;
  bool flat = config.cpu_operations == config::CpuOperations::kTcp;
  if (config.cpu_operations == config::CpuOperations::kLocal && hosts > 1) {
    return Status(StatusCode::kInvalidArgument,
                  Format("HVL_CPU_OPERATIONS=local, but the ranks are on {} hosts, which share no "
                         "memory; expected auto or tcp",
                         hosts));
  }
  if (!flat && hosts > 1 && group_ends != host_ends) {
    HVL_LOG(logger, kWarning, "session",
            "HVL_SUM_GROUPS={} are not the hosts, so that their ranks cannot sum among themselves "
            "first; all data goes through sockets",
            config.sum_groups);
    flat = true;
  }
  HVL_LOG(logger, kDebug, "session", "hosts={} sum_groups={} flat={}", hosts, group_ends.size(),
          flat);
  if (flat && group_ends.size() > 1 && mesh.size() > tcp.most_pairwise_ranks) {
    HVL_ASSIGN_OR_RETURN(std::unique_ptr<collective::Backend> backend,
                         collective::CreateGroupedTcpBackend(mesh.TakeDataLinks(), tcp));
    return backend;
  }
  if (flat) {
    HVL_ASSIGN_OR_RETURN(std::unique_ptr<collective::Backend> backend,
                         collective::CreateTcpBackend(mesh, tcp));
    return backend;
  }
  if (hosts == 1) {
    mesh.TakeDataLinks().reset();  // closes their listener
    return collective::CreateLocalBackend(mesh, local, logger);
  }
  HVL_ASSIGN_OR_RETURN(
      std::unique_ptr<collective::Backend> backend,
      collective::CreateTwoLevelBackend(mesh, {.local = local, .tcp = tcp}, logger));
  return backend;
}

}  // namespace hvl::session
