// What a data plane must provide to be put to the contract: one file that defines MakeWorld.
#pragma once

#include <memory>
#include <vector>

#include "csrc/collective/backend.h"
#include "horovodlite/status.h"

namespace hvl::collective::contract {

/// A world of ranks that are threads of this process, by rank; or a part of one.
struct World : std::vector<std::unique_ptr<Backend>> {
  /// The groups in which it sums (tensor::Reduce); empty = one group.
  std::vector<int> group_ends;
};

/// Each backend's <name>_world.cc defines it; the suite is linked to one of them per executable.
/// The world sums in the groups that are given, if any are.
Result<World> MakeWorld(int ranks, const std::vector<int>& group_ends);

}  // namespace hvl::collective::contract
