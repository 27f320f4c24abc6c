#include "tests/cpp/contract/world.h"
#include "tests/support/reference_backend.h"

namespace hvl::collective::contract {

Result<World> MakeWorld(int ranks, const std::vector<int>& group_ends) {
  return World{test::MakeReferenceWorld(ranks, group_ends), group_ends};
}

}  // namespace hvl::collective::contract
