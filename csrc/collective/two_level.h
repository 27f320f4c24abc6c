// The data plane of several hosts: shared memory within each, sockets between them, so that each
// byte crosses the network once per host.
#pragma once

#include <cstddef>
#include <memory>

#include "csrc/base/log.h"
#include "csrc/collective/backend.h"
#include "csrc/collective/local.h"
#include "csrc/collective/tcp.h"
#include "csrc/net/data_links.h"
#include "csrc/net/mesh.h"
#include "horovodlite/status.h"

namespace hvl::collective {

struct TwoLevelOptions {
  LocalOptions local;
  TcpOptions tcp;
  /// A large allreduce is cut into blocks of about this size: while one is on the network, its
  /// neighbours are worked on within the hosts. Large enough that starting one costs little beside
  /// it. Also what a reduce-scatter may need beside its tensors, about. Must agree between ranks.
  std::size_t block_bytes = std::size_t{8} << 20;
};

class TwoLevelBackend : public Backend {
 public:
  virtual TcpTraffic traffic() const = 0;  ///< between hosts; any thread
};

/// Collective, during set-up of `mesh`, which is used during the call only. Sums host by host: left
/// fold in rank order within each, then left fold of the hosts' results in host order, each rounded
/// to the element type once (tensor::Reduce over groups); `group_ends` of the options count for
/// nothing. Errors as of CreateLocalBackend and CreateTcpBackend.
Result<std::unique_ptr<TwoLevelBackend>> CreateTwoLevelBackend(net::Mesh& mesh,
                                                               TwoLevelOptions options,
                                                               const Logger& logger);

/// The same levels made of sockets alone: for a tcp data plane that sums in `options.group_ends`,
/// of so many ranks that not all pairs may be connected. Local.
Result<std::unique_ptr<TwoLevelBackend>> CreateGroupedTcpBackend(
    std::unique_ptr<net::DataLinks> links, const TcpOptions& options);

}  // namespace hvl::collective
