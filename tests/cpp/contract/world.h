// What a data plane must provide to be put to the contract: one file that defines MakeWorld.
#pragma once

#include <memory>
#include <vector>

#include "csrc/collective/backend.h"
#include "horovodlite/status.h"

namespace hvl::collective::contract {

/// A world of ranks that are threads of this process, by rank.
using World = std::vector<std::unique_ptr<Backend>>;

/// Each backend's <name>_world.cc defines it; the suite is linked to one of them per executable.
Result<World> MakeWorld(int ranks);

}  // namespace hvl::collective::contract
