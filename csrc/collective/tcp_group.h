// What the algorithms of the tcp data plane share: a group of ranks, the links between them, and
// memory through which streams pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "csrc/collective/tcp.h"
#include "csrc/collective/tcp_transfer.h"
#include "csrc/net/data_links.h"
#include "csrc/net/fd.h"
#include "horovodlite/types.h"

namespace hvl::collective {

/// What a backend and its parts share.
struct TcpMeans {
  TcpMeans(std::unique_ptr<net::DataLinks> data, net::UniqueFd abort_event, Duration spin)
      : links(std::move(data), std::move(abort_event), spin) {}

  TcpLinks links;  // its stop is for any thread, all else for the executor role
  std::vector<std::byte> scratch;
};

/// Owned by the executor role, but for links().Stop.
class TcpGroup {
 public:
  /// Per stream: enough chunks that the sender can go on while this rank reduces.
  static constexpr std::size_t kWindowChunks = 4;

  /// `world_ranks` are the members; `tag` tells them from other groups, 0 for the world.
  TcpGroup(const TcpOptions& options, std::shared_ptr<TcpMeans> means, std::vector<int> world_ranks,
           std::uint16_t tag)
      : options_(options),
        means_(std::move(means)),
        world_ranks_(std::move(world_ranks)),
        rank_(static_cast<int>(std::ranges::find(world_ranks_, links().rank()) -
                               world_ranks_.begin())),
        tag_(tag) {}

  const TcpOptions& options() const { return options_; }
  const std::shared_ptr<TcpMeans>& means() const { return means_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  TcpLinks& links() const { return means_->links; }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  /// In the ring of ranks; `distance` may be negative, down to -size().
  int RankAfter(int distance) const { return (rank_ + distance + size()) % size(); }

  /// For the next operation, which has to be the same on all ranks.
  TransferHeader NextHeader(OpKind kind, std::uint64_t bytes, int root = 0);
  Transfer NewTransfer(const TransferHeader& header) const {
    return {links(), world_ranks_, header};
  }

  /// Memory until the next call; grows once and stays.
  std::span<std::byte> Scratch(std::size_t bytes);
  /// `count` windows of `bytes_each` or a little more, out of the scratch memory.
  std::vector<RingWindow> Windows(std::size_t count, std::size_t bytes_each);
  /// What moves and is reduced in one step when `windows` streams pass through windows; a multiple
  /// of every element size.
  std::size_t ChunkBytes(std::size_t windows) const;

 private:
  // Fixed at construction.
  const TcpOptions options_;
  const std::shared_ptr<TcpMeans> means_;  // shared by the backend of the world and its parts
  const std::vector<int> world_ranks_;
  const int rank_;
  const std::uint16_t tag_;

  std::uint32_t sequence_ = 0;
};

}  // namespace hvl::collective
