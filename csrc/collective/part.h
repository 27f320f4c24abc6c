// The ranks of a part of a backend (Backend::Split).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "csrc/base/str.h"
#include "horovodlite/status.h"

namespace hvl::collective {

/// InvalidArgument unless `ranks` are ranks of a group of `size`, ascending, `rank` among them.
inline Status CheckPart(std::span<const int> ranks, int rank, int size) {
  bool has_own = false;
  int previous = -1;
  for (const int member : ranks) {
    if (member <= previous || member >= size) {
      return {StatusCode::kInvalidArgument,
              Format("rank {} after rank {} in a part of {} ranks; expected ascending ranks below "
                     "that number",
                     member, previous, size)};
    }
    has_own = has_own || member == rank;
    previous = member;
  }
  if (has_own) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          Format("rank {} is not in the part that it splits off; only members do that", rank)};
}

/// Nearly always another one for other ranks of the world, never 0. Shown with every operation, so
/// that ranks that are not in the same part notice.
inline std::uint16_t PartTag(std::span<const int> world_ranks) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const int rank : world_ranks) {
    hash = (hash ^ static_cast<std::uint64_t>(rank)) * 0x100000001b3;
  }
  const auto tag = static_cast<std::uint16_t>((hash >> 48) ^ (hash >> 16));
  return tag == 0 ? 1 : tag;
}

/// `places` of a group whose members are `world_ranks`, as ranks of the world.
inline std::vector<int> WorldRanks(std::span<const int> places, std::span<const int> world_ranks) {
  std::vector<int> ranks;
  for (const int place : places) ranks.push_back(world_ranks[static_cast<std::size_t>(place)]);
  return ranks;
}

}  // namespace hvl::collective
