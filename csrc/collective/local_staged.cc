#include "csrc/collective/local_staged.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace hvl::collective {
namespace {

using tensor::StoreHint;

// Runs work(turn) for turn = 0 .. count-1, each when the peers have come far enough.
template <typename Work>
Status RunTurns(Board& board, std::size_t count, Work&& work) {
  for (std::size_t turn = 0; turn < count; ++turn) {
    HVL_RETURN_IF_ERROR(board.AwaitTurns(board.turns() + 1 - std::uint32_t{kLag}));
    work(turn);
    board.FinishTurn();
  }
  return Status::Ok();
}

// The blocks of an operation and their slots.
class Blocks {
 public:
  Blocks(const Staging& staging, std::size_t total_bytes)
      : staging_(staging), first_turn_(staging.board.turns()), total_bytes_(total_bytes) {}

  std::size_t count() const { return (total_bytes_ + block_bytes() - 1) / block_bytes(); }
  std::size_t begin(std::size_t block) const { return block * block_bytes(); }
  std::size_t bytes(std::size_t block) const {
    return std::min(block_bytes(), total_bytes_ - begin(block));
  }
  /// Where rank `rank` has put the block that it filled in its turn `block` of this operation.
  std::byte* slot(int rank, std::size_t block) const {
    const std::uint32_t turn = first_turn_ + static_cast<std::uint32_t>(block);
    return staging_.arenas[static_cast<std::size_t>(rank)]->staging() +
           turn % staging_.geometry.slots * block_bytes();
  }

 private:
  std::size_t block_bytes() const { return staging_.geometry.slot_bytes; }

  const Staging& staging_;
  const std::uint32_t first_turn_;
  const std::size_t total_bytes_;
};

// Allreduce in the manner of a reduce-scatter and an allgather. Each block is cut into one slice
// per rank; slice r is *owned* by rank r. For every block, in three turns:
//   1. share   copy the slices owned by others from the input to this rank's slot;
//   2. reduce  add the own slice over all ranks in rank order: the peers' from their slots, this
//              rank's from its input; the result goes to the output and to the own slice of this
//              rank's slot, which step 1 left free;
//   3. fetch   copy the other slices' results from their owners' slots to the output.
// With n ranks and N bytes each rank copies (n-1)/n N in, reads N and writes 2/n N to reduce, and
// copies (n-1)/n N out: of the user's memory, each byte is read once and written once.
class Reduction {
 public:
  Reduction(const Staging& staging, const PieceList& list, const tensor::ReduceSpec& spec)
      : staging_(staging), list_(list), spec_(spec), blocks_(staging, list.bytes()) {
    inputs_.resize(static_cast<std::size_t>(staging.ranks()));
  }

  Status Run() {
    return RunTurns(staging_.board, blocks_.count() + 2 * kLag, [this](std::size_t turn) {
      if (turn >= 2 * kLag) Fetch(turn - 2 * kLag);
      if (turn >= kLag && turn - kLag < blocks_.count()) Reduce(turn - kLag);
      if (turn < blocks_.count()) Share(turn);
    });
  }

 private:
  // First byte of rank `owner`'s slice in the block.
  std::size_t Cut(std::size_t block, int owner) const {
    const std::size_t bytes = blocks_.bytes(block);
    if (owner == staging_.ranks()) return bytes;
    const auto ranks = static_cast<std::size_t>(staging_.ranks());
    return RoundDown(bytes * static_cast<std::size_t>(owner) / ranks, kLineBytes);
  }

  // Many small pieces are cheaper copied to the slot and reduced there than reduced one by one.
  bool IsFragmented(std::size_t block) const {
    constexpr std::size_t kSmallPieceBytes = 4096;
    const std::size_t begin = blocks_.begin(block) + Cut(block, staging_.rank);
    const std::size_t end = blocks_.begin(block) + Cut(block, staging_.rank + 1);
    return list_.CountPieces(begin, end) > 1 + (end - begin) / kSmallPieceBytes;
  }

  void Share(std::size_t block) {
    const bool fragmented = IsFragmented(block);
    for (int owner = 0; owner < staging_.ranks(); ++owner) {
      if (owner == staging_.rank && !fragmented) continue;
      const StoreHint hint = owner == staging_.rank ? StoreHint::kOrdinary : staging_.hint;
      list_.Gather(blocks_.begin(block) + Cut(block, owner),
                   blocks_.begin(block) + Cut(block, owner + 1),
                   blocks_.slot(staging_.rank, block) + Cut(block, owner), hint);
    }
  }

  void Reduce(std::size_t block) {
    const std::size_t first = Cut(block, staging_.rank);
    const std::size_t end = Cut(block, staging_.rank + 1);
    if (IsFragmented(block)) {
      std::byte* const own = blocks_.slot(staging_.rank, block) + first;
      ReduceContiguous(block, first, end - first, own, own);
      list_.Scatter(blocks_.begin(block) + first, blocks_.begin(block) + end, own);
      return;
    }
    list_.ForEach(blocks_.begin(block) + first, blocks_.begin(block) + end,
                  [this, block](const PieceList::Piece& part) {
                    ReduceContiguous(block, part.begin - blocks_.begin(block), part.bytes,
                                     part.input, part.output);
                  });
  }

  // `own` is this rank's contribution to the bytes [at, at + bytes) of the block.
  void ReduceContiguous(std::size_t block, std::size_t at, std::size_t bytes, const std::byte* own,
                        std::byte* output) {
    std::byte* const shared = blocks_.slot(staging_.rank, block) + at;
    for (int rank = 0; rank < staging_.ranks(); ++rank) {
      inputs_[static_cast<std::size_t>(rank)] =
          rank == staging_.rank ? own : blocks_.slot(rank, block) + at;
    }
    const std::array<tensor::Output, 2> outputs = {{{shared, staging_.hint}, {output}}};
    tensor::Reduce(spec_, inputs_, std::span(outputs).first(output == shared ? 1 : 2),
                   static_cast<std::int64_t>(bytes / DTypeBytes(spec_.dtype)));
  }

  void Fetch(std::size_t block) {
    for (int owner = 0; owner < staging_.ranks(); ++owner) {
      if (owner == staging_.rank) continue;
      list_.Scatter(blocks_.begin(block) + Cut(block, owner),
                    blocks_.begin(block) + Cut(block, owner + 1),
                    blocks_.slot(owner, block) + Cut(block, owner));
    }
  }

  const Staging& staging_;
  const PieceList& list_;
  const tensor::ReduceSpec& spec_;
  const Blocks blocks_;
  std::vector<const void*> inputs_;
};

}  // namespace

SlotGeometry MakeSlots(std::size_t staging_bytes) {
  const std::size_t slot_bytes =
      std::min(kSlotBytes, RoundDown(staging_bytes / kFewestSlots, kPageBytes));
  return {.slot_bytes = slot_bytes, .slots = std::bit_floor(staging_bytes / slot_bytes)};
}

Status StagedAllreduce(const Staging& staging, const PieceList& list,
                       const tensor::ReduceSpec& spec) {
  return Reduction(staging, list, spec).Run();
}

// Each rank puts its blocks into its slots, one per turn, and copies the peers' blocks out kLag
// turns later. A rank with N bytes copies them in once; each peer copies them out once.
Status StagedGather(const Staging& staging, std::span<const PieceList> sources) {
  std::vector<Blocks> blocks;
  std::size_t most_blocks = 0;
  for (const PieceList& source : sources) {
    blocks.emplace_back(staging, source.bytes());
    most_blocks = std::max(most_blocks, blocks.back().count());
  }
  const auto own = static_cast<std::size_t>(staging.rank);
  const std::size_t turns = most_blocks == 0 ? 0 : most_blocks + kLag;
  return RunTurns(staging.board, turns, [&](std::size_t turn) {
    for (std::size_t rank = 0; turn >= kLag && rank < sources.size(); ++rank) {
      const std::size_t block = turn - kLag;
      if (rank == own || block >= blocks[rank].count()) continue;
      const std::size_t begin = blocks[rank].begin(block);
      sources[rank].Scatter(begin, begin + blocks[rank].bytes(block),
                            blocks[rank].slot(static_cast<int>(rank), block));
    }
    if (turn < blocks[own].count()) {
      const std::size_t begin = blocks[own].begin(turn);
      sources[own].Gather(begin, begin + blocks[own].bytes(turn),
                          blocks[own].slot(staging.rank, turn), staging.hint);
    }
  });
}

}  // namespace hvl::collective
