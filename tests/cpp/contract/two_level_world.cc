#include "csrc/collective/two_level.h"
#include "tests/cpp/contract/world.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::collective::contract {
namespace {

// Two ranks per host, and what is left on one more: hosts with as many ranks and with fewer.
std::vector<int> DefaultHosts(int ranks) {
  if (ranks == 2) return {1, 2};
  std::vector<int> ends;
  for (int end = 2; end <= ranks; end += 2) ends.push_back(end);
  if (ranks % 2 == 1) ends.push_back(ranks);
  return ends;
}

}  // namespace

// Groups are hosts here.
Result<World> MakeWorld(int ranks, const std::vector<int>& group_ends) {
  World world;
  world.group_ends = group_ends.empty() ? DefaultHosts(ranks) : group_ends;
  std::vector<int> ranks_per_host;
  int begin = 0;
  for (const int end : world.group_ends) {
    ranks_per_host.push_back(end - begin);
    begin = end;
  }
  HVL_ASSIGN_OR_RETURN(const test::Meshes meshes, test::JoinHosts(ranks_per_host));
  // Small blocks, so that operations of moderate size have several.
  const TwoLevelOptions options{
      .local = {.staging_bytes = 64 << 10, .heap_bytes = std::size_t{64} << 20},
      .tcp = {},
      .block_bytes = 50'000};
  auto created = test::RunRanks(ranks, [&](int rank) {
    return CreateTwoLevelBackend(*meshes[static_cast<std::size_t>(rank)], options, Logger());
  });
  for (Result<std::unique_ptr<TwoLevelBackend>>& backend : created) {
    HVL_RETURN_IF_ERROR(backend.status());
    world.push_back(std::move(backend).value());
  }
  return world;
}

}  // namespace hvl::collective::contract
