// The data plane over TCP sockets: between hosts, for hosts without usable shared memory, and the
// second code path that keeps the first one honest. Full duplex, connects when it has to, copies as
// little as sockets allow. docs/data-planes.md has the table of its algorithms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/collective/backend.h"
#include "csrc/net/data_links.h"
#include "csrc/net/mesh.h"
#include "horovodlite/status.h"

namespace hvl::collective {

/// How a reduction is done; see tcp_reduce.cc and, for kWidened, widened.h.
enum class ReduceWay : std::uint8_t { kGather, kPairwise, kChain, kHalving, kRing, kWidened };

struct TcpOptions {
  /// Sum in rank order. Off: also in other orders, which may depend on an element's place in the
  /// vector.
  bool reproducible = true;
  /// The groups in which ranks are summed (tensor::Reduce), the same on all ranks; empty = one.
  /// Ways that are not reproducible have orders of their own.
  std::vector<int> group_ends = {};
  /// How long to try again before sleeping when nothing arrives; 0 when ranks outnumber cores.
  Duration spin{};
  /// A reduction in which every rank gets at most this many bytes of inputs of others is done in
  /// log2 N steps; a broadcast of at most this many bytes goes down a tree. Must agree.
  std::size_t small_bytes = 32 << 10;
  /// What moves and is reduced in one step. Must agree.
  std::size_t chunk_bytes = 64 << 10;
  /// Beyond, nothing connects all pairs: sums go along a chain, and what has to go from everybody
  /// to everybody through a grid. A rank's sockets to all others would be too many beside its
  /// control links, of which a host of 32 ranks has 31. Must agree.
  int most_pairwise_ranks = 32;
  /// For tests: this way wherever it is possible. Must agree.
  std::optional<ReduceWay> reduce_way = std::nullopt;
};

/// Since the start; headers apart, because they do not grow with the data.
struct TcpTraffic {
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t header_bytes_sent = 0;
  int connections = 0;  ///< data connections of this rank, now
};

class TcpBackend : public Backend {
 public:
  virtual TcpTraffic traffic() const = 0;  ///< any thread
};

/// Local: connections are made by the operations that need them.
Result<std::unique_ptr<TcpBackend>> CreateTcpBackend(std::unique_ptr<net::DataLinks> links,
                                                     const TcpOptions& options);
/// Takes the data links of `mesh`; uses it during the call only.
Result<std::unique_ptr<TcpBackend>> CreateTcpBackend(net::Mesh& mesh, const TcpOptions& options);

}  // namespace hvl::collective
