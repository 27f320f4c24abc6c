// The operations over TCP that add nothing: broadcast, allgather, all-to-all, barrier. All of them
// are explained in tcp_move.cc.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "csrc/collective/exchange_grid.h"
#include "csrc/collective/tcp_group.h"
#include "csrc/collective/tcp_transfer.h"
#include "horovodlite/status.h"

namespace hvl::collective {

/// Each rank has its slice in `slices` (by rank, the same sizes everywhere) and gets all others.
/// Steps count on from the header's phase.
Status GatherByDoubling(TcpGroup& group, const std::vector<ScatterList>& slices,
                        TransferHeader header);
Status GatherAroundRing(TcpGroup& group, const std::vector<ScatterList>& slices,
                        const TransferHeader& header);

/// `vector` is read on the root and written elsewhere.
Status BroadcastDownTree(TcpGroup& group, ScatterList& vector, int root,
                         const TransferHeader& header);
Status BroadcastAlongChain(TcpGroup& group, ScatterList& vector, int root,
                           const TransferHeader& header);

/// What this rank has for each rank, and the place for what each has for it; own entries are not
/// looked at.
Status ExchangeAll(TcpGroup& group, std::vector<ScatterList>& outgoing,
                   std::vector<ScatterList>& incoming, const TransferHeader& header);
/// The same with neighbours in a grid only. `pair_bytes`: what rank i has for rank j at
/// [i * ranks + j]. Steps count on from the header's phase.
Status ExchangeByGrid(TcpGroup& group, const ExchangeGrid& grid,
                      std::span<const std::size_t> pair_bytes,
                      const std::vector<ScatterList>& outgoing,
                      const std::vector<ScatterList>& incoming, TransferHeader header);

Status Meet(TcpGroup& group, TransferHeader header);

}  // namespace hvl::collective
