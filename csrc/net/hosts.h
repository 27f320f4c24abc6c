// Which ranks share a host. Told from what the ranks published, never from names of machines.
#pragma once

#include <span>
#include <vector>

#include "csrc/net/rank_card.h"
#include "horovodlite/status.h"

namespace hvl::net {

/// Host by rank; hosts are numbered by their lowest ranks. Mismatch unless the ranks of each host
/// follow each other, which everything that works host by host relies on.
Result<std::vector<int>> NumberHosts(std::span<const RankCard> cards);

}  // namespace hvl::net
