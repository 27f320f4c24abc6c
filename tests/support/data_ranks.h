// Data links of ranks that are threads of the test process and have no control links.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/log.h"
#include "csrc/net/data_links.h"
#include "csrc/net/secret.h"
#include "csrc/net/socket.h"
#include "tests/support/ranks.h"

namespace hvl::test {

using DataRanks = std::vector<std::unique_ptr<net::DataLinks>>;

/// Ranks that know each other's addresses; `secrets` by rank.
inline DataRanks MakeDataRanks(int size, Duration timeout, const std::vector<net::Secret>& secrets,
                               const Logger& logger = Logger()) {
  std::vector<net::Listener> listeners;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < size; ++rank) {
    listeners.push_back(net::Listen(net::Transport::kTcp).value());
    addresses.push_back(listeners.back().address);
  }
  DataRanks links;
  for (int rank = 0; rank < size; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    net::DataPlan plan{.rank = rank,
                       .job_id = "job",
                       .generation = 7,
                       .secret = secrets[r],
                       .listener = std::move(listeners[r]),
                       .addresses = addresses,
                       .timeout = timeout};
    links.push_back(std::make_unique<net::DataLinks>(std::move(plan), logger));
  }
  return links;
}

/// Ranks of one job.
inline DataRanks MakeDataRanks(int size, Duration timeout = kHangLimit) {
  return MakeDataRanks(
      size, timeout,
      std::vector<net::Secret>(static_cast<std::size_t>(size), net::Secret::Random()));
}

}  // namespace hvl::test
