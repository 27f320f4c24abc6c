#include "csrc/net/hosts.h"

#include <cstddef>
#include <map>
#include <string_view>

#include "csrc/base/str.h"

namespace hvl::net {
namespace {

Status NotContiguous(std::span<const RankCard> cards, std::size_t rank) {
  std::size_t other = 0;
  while (cards[other].host_id != cards[rank].host_id) ++other;
  return {StatusCode::kMismatch,
          Format("ranks {} and {} are on one host ({}), but rank {} between them is on another one "
                 "({}): the ranks of a host must follow each other. Start them host by host: "
                 "hvlrun does, others with mpirun --map-by slot, mpiexec -ppn or "
                 "srun --distribution=block",
                 other, rank, cards[rank].host_name, rank - 1, cards[rank - 1].host_name),
          static_cast<int>(rank)};
}

}  // namespace

Result<std::vector<int>> NumberHosts(std::span<const RankCard> cards) {
  std::vector<int> hosts;
  std::map<std::string_view, int> numbers;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const int next = static_cast<int>(numbers.size());
    const auto [known, is_new] = numbers.emplace(cards[rank].host_id, next);
    if (!is_new && known->second != hosts.back()) return NotContiguous(cards, rank);
    hosts.push_back(known->second);
  }
  return hosts;
}

}  // namespace hvl::net
