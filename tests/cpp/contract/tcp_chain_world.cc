// The tcp data plane as it is in large worlds, where not all pairs are connected: sums along the
// chain of ranks, widened where they have to be, group by group, and exchanges through a grid.
#include "csrc/collective/tcp.h"
#include "csrc/collective/two_level.h"
#include "tests/cpp/contract/world.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::collective::contract {

Result<World> MakeWorld(int ranks, const std::vector<int>& group_ends) {
  HVL_ASSIGN_OR_RETURN(const test::Meshes meshes, test::JoinRanks(ranks));
  World world;
  world.group_ends = group_ends;
  for (const auto& mesh : meshes) {
    const TcpOptions options{
        .group_ends = group_ends, .chunk_bytes = 8 << 10, .most_pairwise_ranks = 1};
    if (group_ends.size() > 1) {
      HVL_ASSIGN_OR_RETURN(auto backend, CreateGroupedTcpBackend(mesh->TakeDataLinks(), options));
      world.push_back(std::move(backend));
    } else {
      HVL_ASSIGN_OR_RETURN(auto backend, CreateTcpBackend(*mesh, options));
      world.push_back(std::move(backend));
    }
  }
  return world;
}

}  // namespace hvl::collective::contract
