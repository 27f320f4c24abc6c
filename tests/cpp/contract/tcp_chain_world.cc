// The tcp data plane as it is in large worlds: sums along the chain of ranks.
#include "csrc/collective/tcp.h"
#include "tests/cpp/contract/world.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::collective::contract {

Result<World> MakeWorld(int ranks, const std::vector<int>& group_ends) {
  HVL_ASSIGN_OR_RETURN(const test::Meshes meshes, test::JoinRanks(ranks));
  World world;
  world.group_ends = group_ends;
  for (const auto& mesh : meshes) {
    HVL_ASSIGN_OR_RETURN(auto backend, CreateTcpBackend(*mesh, {.group_ends = group_ends,
                                                                .chunk_bytes = 8 << 10,
                                                                .most_pairwise_ranks = 1}));
    world.push_back(std::move(backend));
  }
  return world;
}

}  // namespace hvl::collective::contract
