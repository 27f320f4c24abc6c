// Address arithmetic: arenas that are read in step never look alike to the cache.
#include "csrc/collective/local_layout.h"

#include <catch2/catch.hpp>
#include <limits>

namespace hvl::collective {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

TEST_CASE("arenas of any number of ranks lie pages apart modulo 2^28, also around the end") {
  for (const int ranks : {2, 3, 4, 7, 8, 64, 100, 128, 129, 1000, kMaxLocalRanks}) {
    std::size_t nearest = kAliasBytes;
    for (int a = 0; a < ranks; ++a) {
      for (int b = a + 1; b < ranks; ++b) {
        nearest = std::min(nearest, AliasDistance(ArenaResidue(a, ranks), ArenaResidue(b, ranks)));
      }
    }
    INFO(ranks << " ranks");
    CHECK(nearest >= 2 * kPageBytes);
    // Further apart when there are few, which also keeps buffers of different sizes apart.
    if (ranks <= 128) CHECK(nearest >= kHugePageBytes);
  }
}

TEST_CASE("few ranks' arenas start at huge pages") {
  for (int ranks = 1; ranks <= 128; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK(ArenaResidue(rank, ranks) % kHugePageBytes == 0);
      CHECK(ArenaResidue(rank, ranks) < kAliasBytes);
    }
  }
}

TEST_CASE("the first address with a residue is the nearest one that is not below") {
  CHECK(FirstWithResidue(0, 0) == 0);
  CHECK(FirstWithResidue(1, 0) == kAliasBytes);
  CHECK(FirstWithResidue(kAliasBytes, kPageBytes) == kAliasBytes + kPageBytes);
  CHECK(FirstWithResidue(kAliasBytes + kPageBytes, kPageBytes) == kAliasBytes + kPageBytes);
  CHECK(FirstWithResidue(5 * kAliasBytes + 2 * kPageBytes, kPageBytes) ==
        6 * kAliasBytes + kPageBytes);
  const std::uintptr_t typical = 0x7f1234567000;
  const std::uintptr_t found = FirstWithResidue(typical, 3 * kHugePageBytes);
  CHECK(found >= typical);
  CHECK(found - typical < kAliasBytes);
  CHECK(found % kAliasBytes == 3 * kHugePageBytes);
}

TEST_CASE("the alias distance ignores whole multiples of 2^28 and the order") {
  CHECK(AliasDistance(0, 0) == 0);
  CHECK(AliasDistance(7 * kAliasBytes, 2 * kAliasBytes) == 0);
  CHECK(AliasDistance(3 * kAliasBytes + 64, 0) == 64);
  CHECK(AliasDistance(0, 3 * kAliasBytes + 64) == 64);
  CHECK(AliasDistance(kAliasBytes / 2, 0) == kAliasBytes / 2);
}

TEST_CASE("parts of an arena follow one another; staging and heap start at huge pages") {
  const ArenaLayout layout = MakeArenaLayout(4, 5000, 100000, kGiB);
  const auto& world = layout.lane(Lane::kWorld);
  const auto& sets = layout.lane(Lane::kSets);
  CHECK(layout.payload_bytes >= 2 * kMaxPayloadBytes);
  CHECK(layout.staging_bytes >= 100000);
  CHECK(world.payload_offset >= layout.words_bytes);
  CHECK(sets.payload_offset >= world.payload_offset + layout.payload_bytes);
  CHECK(world.staging_offset >= sets.payload_offset + layout.payload_bytes);
  CHECK(sets.staging_offset >= world.staging_offset + layout.staging_bytes);
  CHECK(layout.heap_offset >= sets.staging_offset + layout.staging_bytes);
  for (const ArenaLayout::LaneLayout& lane : layout.lanes) {
    CHECK(lane.payload_offset % kPageBytes == 0);
    CHECK(lane.staging_offset % kHugePageBytes == 0);
  }
  CHECK(layout.heap_offset % kHugePageBytes == 0);
  CHECK(layout.heap_bytes == kGiB);
  CHECK(layout.total_bytes == layout.heap_offset + layout.heap_bytes);
}

TEST_CASE("a world of one has no staging memory") {
  const ArenaLayout layout = MakeArenaLayout(1, 5000, std::size_t{4} << 20, kGiB);
  CHECK(layout.staging_bytes == 0);
}

TEST_CASE("the heap takes the machine's memory, unless addresses run out first") {
  CHECK(ReservableHeapBytes(16 * kGiB, kUnlimited, 2) == 16 * kGiB);
  CHECK(ReservableHeapBytes(16 * kGiB, 16 * kGiB, 2) == 2 * kGiB);
  CHECK(ReservableHeapBytes(2048 * kGiB, kUnlimited, 1024) == 32 * kGiB);
  CHECK(ReservableHeapBytes(16 * kGiB, 1000, 2) == 0);
}

}  // namespace
}  // namespace hvl::collective
