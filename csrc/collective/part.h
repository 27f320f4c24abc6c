// The ranks of a part of a backend (Backend::Split).
#pragma once

#include <cstddef>
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

/// Where groups of ranks (tensor::Reduce) end among those at `places` only.
inline std::vector<int> PartGroupEnds(std::span<const int> places,
                                      std::span<const int> group_ends) {
  std::vector<int> ends;
  std::size_t group = 0;
  for (std::size_t index = 0; index < places.size(); ++index) {
    std::size_t own = group;
    while (own < group_ends.size() && group_ends[own] <= places[index]) ++own;
    if (own != group && index > 0) ends.push_back(static_cast<int>(index));
    group = own;
  }
  if (!group_ends.empty()) ends.push_back(static_cast<int>(places.size()));
  return ends;
}

/// `places` of a group whose members are `world_ranks`, as ranks of the world.
inline std::vector<int> WorldRanks(std::span<const int> places, std::span<const int> world_ranks) {
  std::vector<int> ranks;
  for (const int place : places) ranks.push_back(world_ranks[static_cast<std::size_t>(place)]);
  return ranks;
}

}  // namespace hvl::collective
