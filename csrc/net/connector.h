// Makes one authenticated connection between every pair of ranks, all at the same time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/net/fd.h"
#include "csrc/net/handshake.h"
#include "csrc/net/secret.h"
#include "csrc/net/socket.h"
#include "horovodlite/status.h"

namespace hvl::net {

struct ConnectPlan {
  int rank = 0;
  int size = 1;
  std::string job_id;
  std::uint64_t generation = 0;
  Channel channel = Channel::kControl;
  Secret secret;
  Listener listener;                   ///< where higher ranks find this one; closed at the end
  std::vector<std::string> addresses;  ///< of all ranks' listeners
  std::vector<int> process_fds;        ///< of all ranks, see WatchProcess; -1 = not watched
  TimePoint deadline;
};

/// Collective. Rank i connects to every j < i and accepts every j > i, in one loop over
/// non-blocking sockets, so that no order of arrival can block it. Strangers that reach the
/// listener are refused and do not disturb. Returns the sockets by rank. Errors name the rank:
/// Unavailable (ended, does not listen any more), Mismatch (does not know the secret), Timeout.
Result<std::vector<UniqueFd>> ConnectAll(ConnectPlan plan, const Logger& logger);

}  // namespace hvl::net
