#include "tests/cpp/contract/world.h"
#include "tests/support/reference_backend.h"

namespace hvl::collective::contract {

Result<World> MakeWorld(int ranks) { return test::MakeReferenceWorld(ranks); }

}  // namespace hvl::collective::contract
