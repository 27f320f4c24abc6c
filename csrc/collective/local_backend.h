// One rank's end of the data plane of one host (local.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/collective/backend.h"
#include "csrc/collective/local_arena.h"
#include "csrc/collective/local_board.h"
#include "csrc/collective/local_direct.h"
#include "csrc/collective/local_heap.h"
#include "csrc/collective/local_staged.h"
#include "csrc/collective/piece_list.h"
#include "horovodlite/status.h"

namespace hvl::collective {

// Which way an operation goes depends on its size, which is the same on all ranks:
//  - small (up to kSmallBytes): one exchange; every rank shows its data and does all the work;
//  - else the ranks first exchange where their pieces lie; those in shared memory are worked on in
//    place (local_direct.h), all others pass through staging memory (local_staged.h).
// An operation of a process set, that is of a part, also ends with an exchange (local_board.h).
// When an operation is aborted, inputs that are not outputs are unchanged, unless they are in
// shared memory and a peer has gone mad.
class LocalBackend final : public Backend {
 public:
  /// The arenas are mapped; `own` is this rank's, `peers` has no entry for it. `rank` counts from
  /// `first_rank`, the number in the world of the first rank of this host.
  LocalBackend(int rank, std::shared_ptr<Arena> own, std::vector<std::unique_ptr<Arena>> peers,
               Duration spin, std::vector<int> group_ends, int first_rank = 0);
  /// The part of `parent` that has the ranks at `places`.
  LocalBackend(const LocalBackend& parent, std::span<const int> places);

  std::string_view name() const override { return "local"; }
  Status Allreduce(std::span<const ReducePiece> pieces, const tensor::ReduceSpec& spec) override;
  Status Broadcast(std::span<const BroadcastPiece> pieces, int root) override;
  Status Allgather(std::span<const GatherPiece> pieces) override;
  Status Barrier() override;
  Status Reducescatter(std::span<const ScatterPiece> pieces,
                       const tensor::ReduceSpec& spec) override;
  Status Alltoall(std::span<const ExchangePiece> pieces) override;
  Result<std::unique_ptr<Backend>> Split(std::span<const int> ranks) override;
  bool has_gates() const override { return true; }
  Result<GateResult> Gate(std::uint64_t number, std::uint32_t mark, bool may_sleep) override {
    return board_.PassGate(number, mark, may_sleep);
  }
  void Withdraw(std::uint64_t first, std::uint64_t last) override { board_.Withdraw(first, last); }
  void Abort(const Status& cause) override { board_.Abort(cause); }
  Result<SharedBuffer> Allocate(std::size_t bytes) override { return heap_->Allocate(bytes); }

 private:
  Status SmallAllreduce(const PieceList& list, const tensor::ReduceSpec& spec, std::uint16_t mark);
  Status LargeAllreduce(std::span<const ReducePiece> pieces, const tensor::ReduceSpec& spec,
                        std::uint16_t mark);
  /// After the exchange of places: which pieces are in shared memory on all ranks, which not.
  Status Divide(std::span<const ReducePiece> pieces, std::size_t element_bytes,
                DirectReduction& direct, PieceList& staged) const;
  /// By rank: this rank's inputs to the parts of that rank, and the outputs of its own.
  std::vector<PieceList> PartsByOwner(std::span<const ScatterPiece> pieces,
                                      std::size_t element_bytes) const;
  Status SmallReducescatter(std::span<const PieceList> parts, const tensor::ReduceSpec& spec,
                            std::uint16_t mark);
  Status LargeReducescatter(std::span<const ScatterPiece> pieces, const tensor::ReduceSpec& spec,
                            std::uint16_t mark);
  /// Reduces this rank's part in place if the input lies in shared memory on all ranks, at
  /// `places`.
  Result<bool> ReduceInPlace(const ScatterPiece& piece, std::span<const std::uint64_t> places,
                             const tensor::ReduceSpec& spec) const;
  /// After an exchange in which every rank has shown `shown_bytes`: reduces those that begin at
  /// `begin` to the outputs of `list`.
  Status ReduceShown(const PieceList& list, std::size_t begin, std::size_t shown_bytes,
                     const tensor::ReduceSpec& spec);
  /// Moves what sources[q] holds from its inputs on rank q to its outputs on all other ranks.
  Status Gather(std::span<const PieceList> sources, std::uint16_t mark);
  Status SmallGather(std::span<const PieceList> sources, std::uint16_t mark);
  Status LargeGather(std::span<const PieceList> sources, std::uint16_t mark);
  /// Right after an exchange.
  Result<Staging> PrepareStaging();
  /// Measures the distance of the ranks and chooses the stores by it.
  Status ChooseStores();
  /// Ends an operation in which peers have read what this rank may write next: its tensors
  /// (`in_place`), or in a process set what all sets share.
  Status EndOperation(std::uint16_t mark, bool in_place);
  Status CheckShown(int rank, std::size_t bytes) const;

  int ranks() const { return static_cast<int>(arenas_.size()); }
  int WorldRank(int rank) const { return board_.world_ranks()[static_cast<std::size_t>(rank)]; }

  const int rank_;
  const std::shared_ptr<Arena> own_;  // shared with parts, the heap and so with its living buffers
  const std::vector<std::unique_ptr<Arena>> peers_;  // by rank, own entry null; none in a part
  const std::vector<const Arena*> arenas_;           // by rank
  const std::vector<int> group_ends_;                // of its ranks (tensor::Reduce)
  const std::shared_ptr<SharedHeap> heap_;           // shared with parts and its living buffers
  Board board_;
  unsigned staged_operations_ = 0;
  tensor::StoreHint staging_hint_ = tensor::StoreHint::kOrdinary;
  std::vector<std::byte> scratch_;
};

}  // namespace hvl::collective
