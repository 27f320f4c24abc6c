#include "csrc/collective/local.h"
#include "tests/cpp/contract/world.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::collective::contract {

Result<World> MakeWorld(int ranks, const std::vector<int>& group_ends) {
  HVL_ASSIGN_OR_RETURN(const test::Meshes meshes, test::JoinRanks(ranks));
  // Little staging memory, so that operations of moderate size go around the slots many times; a
  // small heap, because every thread maps the arenas of all.
  const LocalOptions options{
      .staging_bytes = 64 << 10, .heap_bytes = std::size_t{64} << 20, .group_ends = group_ends};
  auto created = test::RunRanks(ranks, [&](int rank) {
    return CreateLocalBackend(*meshes[static_cast<std::size_t>(rank)], options, Logger());
  });
  World world;
  world.group_ends = group_ends;
  for (Result<std::unique_ptr<Backend>>& backend : created) {
    HVL_RETURN_IF_ERROR(backend.status());
    world.push_back(std::move(backend).value());
  }
  return world;
}

}  // namespace hvl::collective::contract
