// Operations on memory that peers cannot see: it passes through slots of shared memory, block by
// block, small enough to stay in cache.
#pragma once

#include <cstddef>
#include <span>

#include "csrc/collective/local_arena.h"
#include "csrc/collective/local_board.h"
#include "csrc/collective/local_layout.h"
#include "csrc/collective/piece_list.h"
#include "csrc/tensor/reduce.h"
#include "horovodlite/status.h"

namespace hvl::collective {

// A block is put into a slot of the staging memory in one *turn*, processed by the peers kLag turns
// later, and any result of that is fetched after kLag more. All ranks of a board count its turns
// alike, from start to end, and turn t uses slot t modulo the number of slots; so nothing has to be
// agreed on between operations. (Process sets share slots, but nobody reads any between their
// operations; see local_board.h.)
//
// A rank starts turn t when all peers have finished turn t - kLag. Hence
//  - what it processes (from turn t - kLag) or fetches (results of turn t - kLag) is there;
//  - the slot it fills was last used in turn t - slots, fetched by the peers in their turn
//    t - slots + 2 kLag at the latest, which they have finished if slots >= 3 kLag.
inline constexpr std::size_t kLag = 1;
inline constexpr std::size_t kFewestSlots = 4;
static_assert(kFewestSlots >= 3 * kLag);

// A slot is small, so that a block is still in the second-level cache when it is processed; but all
// slots together are several times that cache. Writing to a line of which another core's cache has
// a copy takes long, as it has to be told; going around so much memory, the copies are gone and the
// lines are in the third-level cache, from where both sides have them quickly.
inline constexpr std::size_t kSlotBytes = std::size_t{128} << 10;

struct SlotGeometry {
  std::size_t slot_bytes;
  std::size_t slots;  ///< a power of two, so that the number of a turn may wrap around
};
/// The least staging memory: a slot has a line for each rank.
constexpr std::size_t LeastStagingBytes(int ranks) {
  return kFewestSlots * RoundUp(static_cast<std::size_t>(ranks) * kLineBytes, kPageBytes);
}
/// `staging_bytes` >= LeastStagingBytes(ranks).
SlotGeometry MakeSlots(std::size_t staging_bytes);

struct Staging {
  int rank;
  std::span<const Arena* const> arenas;  ///< by rank
  Board& board;
  std::span<const int> group_ends;  ///< in which ranks are summed (tensor::Reduce)
  SlotGeometry geometry;
  /// How to store what peers read next.
  tensor::StoreHint hint;

  int ranks() const { return static_cast<int>(arenas.size()); }
};

/// Reduces the list on all ranks; `list` has inputs and outputs, `spec.dtype` elements.
Status StagedAllreduce(const Staging& staging, const PieceList& list,
                       const tensor::ReduceSpec& spec);

/// Reduces to each rank its part. `parts`, by rank: a list with this rank's inputs to the part of
/// that rank; the own one has outputs as well.
Status StagedReducescatter(const Staging& staging, std::span<const PieceList> parts,
                           const tensor::ReduceSpec& spec);

/// Copies what `sources` says is a rank's contribution to every other rank. By rank: a list whose
/// inputs are read on that rank and whose outputs are written on all others, where they are not
/// null; every rank knows the size of each list.
Status StagedGather(const Staging& staging, std::span<const PieceList> sources);

}  // namespace hvl::collective
