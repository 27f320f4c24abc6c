#include "csrc/session/data_plane.h"

#include <utility>

#include "csrc/collective/tcp.h"
#include "csrc/session/settings.h"

namespace hvl::session {

Result<std::unique_ptr<collective::Backend>> MakeDataPlane(const config::Config& config,
                                                           net::Mesh& mesh, const Logger&) {
  HVL_ASSIGN_OR_RETURN(std::unique_ptr<collective::Backend> backend,
                       collective::CreateTcpBackend(mesh, TcpOptions(config)));
  return backend;
}

}  // namespace hvl::session
