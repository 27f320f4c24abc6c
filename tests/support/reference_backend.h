// The oracle for data planes: ranks are threads that meet, and the last to come does the work of
// all with the oracle for reductions.
#pragma once

#include <memory>
#include <vector>

#include "csrc/collective/backend.h"

namespace hvl::test {

/// One backend per rank of a world. They keep what they share alive; each may be used on its own
/// thread. Calls that differ between ranks are a bug of the test and end the process. Elements are
/// combined group by group, as tensor::Reduce does it; `group_ends` empty = in one group.
std::vector<std::unique_ptr<collective::Backend>> MakeReferenceWorld(
    int ranks, std::vector<int> group_ends = {});

}  // namespace hvl::test
