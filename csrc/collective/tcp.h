// The data plane over TCP sockets: for hosts without usable shared memory, and the second code path
// that keeps the first one honest. Plain, full duplex, copies as little as sockets allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/collective/backend.h"
#include "csrc/net/mesh.h"
#include "horovodlite/status.h"

namespace hvl::collective {

struct TcpOptions {
  /// Sum in rank order. Off: rings, whose order depends on the element's place in the vector.
  bool reproducible = true;
  /// The groups in which ranks are summed (tensor::Reduce), the same on all ranks; empty = one.
  /// A ring has an order of its own.
  std::vector<int> group_ends = {};
  /// How long to try again before sleeping when nothing arrives; 0 when ranks outnumber cores.
  Duration spin{};
  /// An allreduce that sends at most this many bytes per rank goes to everybody in one exchange;
  /// a broadcast of at most this many bytes goes down a tree. Must agree between ranks.
  std::size_t small_bytes = 32 << 10;
  /// What moves and is reduced in one step.
  std::size_t chunk_bytes = 64 << 10;
};

/// Since the start; headers apart, because they do not grow with the data.
struct TcpTraffic {
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t header_bytes_sent = 0;
};

class TcpBackend : public Backend {
 public:
  virtual TcpTraffic traffic() const = 0;  ///< any thread
};

/// Collective: opens one data connection per peer. Uses `mesh` during the call only.
Result<std::unique_ptr<TcpBackend>> CreateTcpBackend(net::Mesh& mesh, TcpOptions options);

}  // namespace hvl::collective
