#include "csrc/collective/local_layout.h"

#include <algorithm>

namespace hvl::collective {

ArenaLayout MakeArenaLayout(int ranks, std::size_t words_bytes, std::size_t staging_bytes,
                            std::size_t heap_bytes) {
  ArenaLayout layout;
  layout.words_bytes = words_bytes;
  // A world of one exchanges nothing.
  layout.payload_bytes = ranks > 1 ? RoundUp(2 * kMaxPayloadBytes, kPageBytes) : 0;
  layout.staging_bytes = ranks > 1 ? RoundUp(staging_bytes, kPageBytes) : 0;
  std::size_t end = RoundUp(words_bytes, kPageBytes);
  for (ArenaLayout::LaneLayout& lane : layout.lanes) {
    lane.payload_offset = end;
    end += layout.payload_bytes;
  }
  for (ArenaLayout::LaneLayout& lane : layout.lanes) {
    lane.staging_offset = RoundUp(end, kHugePageBytes);
    end = lane.staging_offset + layout.staging_bytes;
  }
  layout.heap_offset = RoundUp(end, kHugePageBytes);
  layout.heap_bytes = RoundUp(heap_bytes, kPageBytes);
  layout.total_bytes = layout.heap_offset + layout.heap_bytes;
  return layout;
}

std::size_t ReservableHeapBytes(std::size_t physical_bytes, std::size_t address_space_limit,
                                int ranks) {
  // A quarter of what a process may map leaves room for everything else in it.
  constexpr std::size_t kAddressBits = 47;
  const std::size_t addresses = std::min(address_space_limit, std::size_t{1} << kAddressBits) / 4;
  return RoundDown(std::min(physical_bytes, addresses / static_cast<std::size_t>(ranks)),
                   kHugePageBytes);
}

std::size_t ArenaResidue(int rank, int ranks) {
  const std::size_t share = kAliasBytes / static_cast<std::size_t>(ranks);
  // Whole huge pages where the ranks are few enough: an arena can then be mapped by such pages.
  const std::size_t unit = share >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  return static_cast<std::size_t>(rank) * RoundDown(share, unit);
}

std::uintptr_t FirstWithResidue(std::uintptr_t lowest, std::size_t residue) {
  return lowest + (residue - lowest) % kAliasBytes;  // unsigned: wraps, and 2^28 divides 2^64
}

std::size_t AliasDistance(std::uintptr_t a, std::uintptr_t b) {
  const std::size_t up = (a - b) % kAliasBytes;
  return std::min(up, kAliasBytes - up);
}

}  // namespace hvl::collective
