#include "csrc/collective/tcp.h"
#include "tests/cpp/contract/world.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::collective::contract {

Result<World> MakeWorld(int ranks, const std::vector<int>& group_ends) {
  HVL_ASSIGN_OR_RETURN(const test::Meshes meshes, test::JoinRanks(ranks));
  auto created = test::RunRanks(ranks, [&](int rank) {
    return CreateTcpBackend(*meshes[static_cast<std::size_t>(rank)],
                            TcpOptions{.group_ends = group_ends});
  });
  World world;
  world.group_ends = group_ends;
  for (Result<std::unique_ptr<TcpBackend>>& backend : created) {
    HVL_RETURN_IF_ERROR(backend.status());
    world.push_back(std::move(backend).value());
  }
  return world;
}

}  // namespace hvl::collective::contract
