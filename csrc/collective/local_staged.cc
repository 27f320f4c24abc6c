#include "csrc/collective/local_staged.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
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

// The slots of an operation, by its turns.
class Slots {
 public:
  explicit Slots(const Staging& staging) : staging_(staging), first_turn_(staging.board.turns()) {}

  std::size_t bytes() const { return staging_.geometry.slot_bytes; }
  /// Where rank `rank` has put the block that it filled in its turn `block` of this operation.
  std::byte* At(int rank, std::size_t block) const {
    const std::uint32_t turn = first_turn_ + static_cast<std::uint32_t>(block);
    return staging_.arenas[static_cast<std::size_t>(rank)]->staging(staging_.board.lane()) +
           turn % staging_.geometry.slots * bytes();
  }

 private:
  const Staging& staging_;
  const std::uint32_t first_turn_;
};

// One long vector cut into blocks of the size of a slot.
class Blocks {
 public:
  Blocks(std::size_t block_bytes, std::size_t total_bytes)
      : block_bytes_(block_bytes), total_bytes_(total_bytes) {}

  std::size_t count() const { return (total_bytes_ + block_bytes_ - 1) / block_bytes_; }
  std::size_t begin(std::size_t block) const {
    return std::min(block * block_bytes_, total_bytes_);
  }
  std::size_t end(std::size_t block) const { return begin(block + 1); }
  std::size_t bytes(std::size_t block) const { return end(block) - begin(block); }

 private:
  std::size_t block_bytes_;
  std::size_t total_bytes_;
};

// Cuts `bytes` bytes into one slice per rank, at cache lines.
std::size_t SliceBegin(std::size_t bytes, int rank, int ranks) {
  if (rank == ranks) return bytes;
  return RoundDown(bytes * static_cast<std::size_t>(rank) / static_cast<std::size_t>(ranks),
                   kLineBytes);
}

// What one rank has to reduce of a block: the bytes [begin, end) of a list, which lie at `at` in
// the slots.
struct Slice {
  const PieceList& list;
  std::size_t begin;
  std::size_t end;
  std::size_t at;
};

// Allreduce: a block is the next part of the vector, cut into one slice per rank.
class VectorSlices {
 public:
  static constexpr bool kAllGetAll = true;
  VectorSlices(const Staging& staging, const PieceList& list)
      : ranks_(staging.ranks()), list_(list), blocks_(staging.geometry.slot_bytes, list.bytes()) {}

  std::size_t blocks() const { return blocks_.count(); }
  Slice Get(std::size_t block, int owner) const {
    const std::size_t at = SliceBegin(blocks_.bytes(block), owner, ranks_);
    const std::size_t end = SliceBegin(blocks_.bytes(block), owner + 1, ranks_);
    const std::size_t begin = blocks_.begin(block);
    return {.list = list_, .begin = begin + at, .end = begin + end, .at = at};
  }

 private:
  const int ranks_;
  const PieceList& list_;
  const Blocks blocks_;
};

// Reduce-scatter: a slot is cut into one slice per rank, through which its part passes.
class PartSlices {
 public:
  static constexpr bool kAllGetAll = false;
  PartSlices(const Staging& staging, std::span<const PieceList> parts) : parts_(parts) {
    for (int owner = 0; owner < staging.ranks(); ++owner) {
      const std::size_t slot_bytes = staging.geometry.slot_bytes;
      const std::size_t at = SliceBegin(slot_bytes, owner, staging.ranks());
      const std::size_t end = SliceBegin(slot_bytes, owner + 1, staging.ranks());
      places_.push_back({at, Blocks(end - at, parts[places_.size()].bytes())});
    }
  }

  std::size_t blocks() const {
    std::size_t most = 0;
    for (const Place& place : places_) most = std::max(most, place.blocks.count());
    return most;
  }
  Slice Get(std::size_t block, int owner) const {
    const auto index = static_cast<std::size_t>(owner);
    const auto& [at, blocks] = places_[index];
    return {
        .list = parts_[index], .begin = blocks.begin(block), .end = blocks.end(block), .at = at};
  }

 private:
  struct Place {
    std::size_t at;  // in a slot
    Blocks blocks;
  };
  const std::span<const PieceList> parts_;
  std::vector<Place> places_;
};

// Allreduce in the manner of a reduce-scatter and an allgather. In each block there is one slice
// per rank; slice r is *owned* by rank r. For every block, in three turns:
//   1. share   copy the slices owned by others from the input to this rank's slot;
//   2. reduce  add the own slice over all ranks in rank order: the peers' from their slots, this
//              rank's from its input; the result goes to the output and to the own slice of this
//              rank's slot, which step 1 left free;
//   3. fetch   copy the other slices' results from their owners' slots to the output.
// With n ranks and N bytes each rank copies (n-1)/n N in, reads N and writes 2/n N to reduce, and
// copies (n-1)/n N out: of the user's memory, each byte is read once and written once.
//
// A reduce-scatter is steps 1 and 2.
template <typename Slices>
class StagedReduction {
 public:
  StagedReduction(const Staging& staging, Slices slices, const tensor::ReduceSpec& spec)
      : staging_(staging), slices_(std::move(slices)), spec_(spec), slots_(staging) {
    inputs_.resize(static_cast<std::size_t>(staging.ranks()));
  }

  Status Run() {
    const std::size_t blocks = slices_.blocks();
    const std::size_t steps_after_first = Slices::kAllGetAll ? 2 : 1;
    return RunTurns(staging_.board, blocks + steps_after_first * kLag,
                    [this, blocks](std::size_t turn) {
                      if (Slices::kAllGetAll && turn >= 2 * kLag) Fetch(turn - 2 * kLag);
                      if (turn >= kLag && turn - kLag < blocks) Reduce(turn - kLag);
                      if (turn < blocks) Share(turn);
                    });
  }

 private:
  // Many small pieces are cheaper copied to the slot and reduced there than reduced one by one.
  static bool IsFragmented(const Slice& own) {
    constexpr std::size_t kSmallPieceBytes = 4096;
    return own.list.CountPieces(own.begin, own.end) > 1 + (own.end - own.begin) / kSmallPieceBytes;
  }

  void Share(std::size_t block) {
    const bool fragmented = IsFragmented(slices_.Get(block, staging_.rank));
    for (int owner = 0; owner < staging_.ranks(); ++owner) {
      if (owner == staging_.rank && !fragmented) continue;
      const StoreHint hint = owner == staging_.rank ? StoreHint::kOrdinary : staging_.hint;
      const Slice slice = slices_.Get(block, owner);
      slice.list.Gather(slice.begin, slice.end, slots_.At(staging_.rank, block) + slice.at, hint);
    }
  }

  void Reduce(std::size_t block) {
    const Slice slice = slices_.Get(block, staging_.rank);
    if (IsFragmented(slice)) {
      std::byte* const own = slots_.At(staging_.rank, block) + slice.at;
      ReduceContiguous(block, slice.at, slice.end - slice.begin, own, own);
      slice.list.Scatter(slice.begin, slice.end, own);
      return;
    }
    slice.list.ForEach(slice.begin, slice.end, [this, block, &slice](const PieceList::Piece& part) {
      ReduceContiguous(block, slice.at + (part.begin - slice.begin), part.bytes, part.input,
                       part.output);
    });
  }

  // `own` is this rank's contribution to the bytes [at, at + bytes) of the slots.
  void ReduceContiguous(std::size_t block, std::size_t at, std::size_t bytes, const std::byte* own,
                        std::byte* output) {
    std::byte* const shared = slots_.At(staging_.rank, block) + at;
    for (int rank = 0; rank < staging_.ranks(); ++rank) {
      inputs_[static_cast<std::size_t>(rank)] =
          rank == staging_.rank ? own : slots_.At(rank, block) + at;
    }
    const std::array<tensor::Output, 2> outputs = {{{shared, staging_.hint}, {output}}};
    std::span<const tensor::Output> used(outputs);
    if (!Slices::kAllGetAll) used = used.last(1);
    if (Slices::kAllGetAll && output == shared) used = used.first(1);
    tensor::Reduce(spec_, staging_.group_ends, inputs_, used,
                   static_cast<std::int64_t>(bytes / DTypeBytes(spec_.dtype)));
  }

  void Fetch(std::size_t block) {
    for (int owner = 0; owner < staging_.ranks(); ++owner) {
      if (owner == staging_.rank) continue;
      const Slice slice = slices_.Get(block, owner);
      slice.list.Scatter(slice.begin, slice.end, slots_.At(owner, block) + slice.at);
    }
  }

  const Staging& staging_;
  const Slices slices_;
  const tensor::ReduceSpec& spec_;
  const Slots slots_;
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
  return StagedReduction(staging, VectorSlices(staging, list), spec).Run();
}

Status StagedReducescatter(const Staging& staging, std::span<const PieceList> parts,
                           const tensor::ReduceSpec& spec) {
  return StagedReduction(staging, PartSlices(staging, parts), spec).Run();
}

// Each rank puts its blocks into its slots, one per turn, and copies the peers' blocks out kLag
// turns later. A rank with N bytes copies them in once; each peer copies them out once.
Status StagedGather(const Staging& staging, std::span<const PieceList> sources) {
  const Slots slots(staging);
  std::vector<Blocks> blocks;
  std::size_t most_blocks = 0;
  for (const PieceList& source : sources) {
    blocks.emplace_back(slots.bytes(), source.bytes());
    most_blocks = std::max(most_blocks, blocks.back().count());
  }
  const auto own = static_cast<std::size_t>(staging.rank);
  const std::size_t turns = most_blocks == 0 ? 0 : most_blocks + kLag;
  return RunTurns(staging.board, turns, [&](std::size_t turn) {
    for (std::size_t rank = 0; turn >= kLag && rank < sources.size(); ++rank) {
      const std::size_t block = turn - kLag;
      if (rank == own || block >= blocks[rank].count()) continue;
      sources[rank].Scatter(blocks[rank].begin(block), blocks[rank].end(block),
                            slots.At(static_cast<int>(rank), block));
    }
    if (turn < blocks[own].count()) {
      sources[own].Gather(blocks[own].begin(turn), blocks[own].end(turn),
                          slots.At(staging.rank, turn), staging.hint);
    }
  });
}

}  // namespace hvl::collective
