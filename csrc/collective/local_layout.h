// Where things lie inside an arena, and where arenas lie in the address space. Pure arithmetic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvl::collective {

inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// Most ranks of one host. Bounds the shared words (256 bytes per pair of ranks).
inline constexpr int kMaxLocalRanks = 1024;

/// Largest payload of one exchange (local_board.h) that does not fit into its cell.
inline constexpr std::size_t kMaxPayloadBytes = 65535 / kLineBytes * kLineBytes;

constexpr std::size_t RoundDown(std::size_t value, std::size_t unit) { return value / unit * unit; }
constexpr std::size_t RoundUp(std::size_t value, std::size_t unit) {
  return RoundDown(value + unit - 1, unit);
}

/// Two sets of words, payloads and staging memory, because an operation of the world does not end
/// with a meeting: while an operation of a process set runs, ranks outside of the set may still be
/// reading what the last one of the world has left.
enum class Lane : std::uint8_t { kWorld, kSets };
inline constexpr std::size_t kLanes = 2;

/// Byte offsets in one rank's arena:
///
///   header and words | payloads of exchanges, by lane | staging, by lane | heap
///
/// Of the heap, only what is allocated costs memory; of the lane of the process sets, all of it
/// when there is a set. The rest is committed at start.
struct ArenaLayout {
  struct LaneLayout {
    std::size_t payload_offset = 0;  ///< two, for exchanges with even and with odd number
    std::size_t staging_offset = 0;
    bool operator==(const LaneLayout&) const = default;
  };

  std::size_t words_bytes = 0;
  std::array<LaneLayout, kLanes> lanes;
  std::size_t payload_bytes = 0;  ///< of each lane
  std::size_t staging_bytes = 0;  ///< of each lane
  std::size_t heap_offset = 0;
  std::size_t heap_bytes = 0;
  std::size_t total_bytes = 0;

  const LaneLayout& lane(Lane which) const { return lanes[static_cast<std::size_t>(which)]; }
  bool operator==(const ArenaLayout&) const = default;
};

/// Staging and heap start at huge pages, so that the kernel may use such pages for them.
ArenaLayout MakeArenaLayout(int ranks, std::size_t words_bytes, std::size_t staging_bytes,
                            std::size_t heap_bytes);

/// How much address space a rank reserves for its heap: all that the machine's memory could fill,
/// unless the process (`address_space_limit`, all ranks' arenas are mapped into it) or the ranks
/// together would run out of addresses. 0 if there is no room for any.
std::size_t ReservableHeapBytes(std::size_t physical_bytes, std::size_t address_space_limit,
                                int ranks);

// The first-level cache of AMD cores predicts the way of a line from a hash of its virtual address.
// Lines whose addresses agree in the low 28 bits are taken for one another, and each access to one
// of them in turn with the other misses: adding two slices that lie a multiple of 256 MiB apart
// takes 15 times as long. So arenas, which are read in step with each other, are mapped at chosen
// distances modulo 2^28.
inline constexpr std::size_t kAliasBytes = std::size_t{1} << 28;

/// The residue modulo 2^28 of the address at which rank `rank`'s arena is mapped, in every process.
/// Residues of different ranks are at least pages apart, also around the end of the range.
std::size_t ArenaResidue(int rank, int ranks);

/// The lowest address from `lowest` on that has this residue.
std::uintptr_t FirstWithResidue(std::uintptr_t lowest, std::size_t residue);

/// How far two addresses are from agreeing in their low 28 bits.
std::size_t AliasDistance(std::uintptr_t a, std::uintptr_t b);

}  // namespace hvl::collective
