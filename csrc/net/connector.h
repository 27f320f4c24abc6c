// Makes authenticated connections between this rank and several others, all at the same time.
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
  std::vector<int> peers;  ///< whom to connect with; they have this rank in theirs
  std::string job_id;
  std::uint64_t generation = 0;
  Channel channel = Channel::kControl;
  Secret secret;
  Listener listener;                   ///< where higher peers find this one; closed at the end
  std::vector<std::string> addresses;  ///< of all ranks' listeners
  std::vector<int> process_fds;        ///< of all ranks, see WatchProcess; -1 = not watched
  bool watch_listeners = false;        ///< of higher peers, whose processes nobody here can watch
  /// A peer whose host shows no sign of life for this long is lost; zero, and not on TCP: never.
  Duration silence_limit{};
  TimePoint deadline;
};

struct ProvenLink {
  UniqueFd socket;
  LinkKeys keys;
};

/// Collective among peers. Rank i connects to peers j < i and accepts peers j > i, in one loop over
/// non-blocking sockets, so that no order of arrival can block it. Strangers that reach the
/// listener are refused and do not disturb. Returns the links by rank, invalid for others than
/// peers. Errors name the rank: Unavailable (ended, does not listen any more, is silent with its
/// host), Mismatch (does not know the secret), Timeout.
///
/// Who only waits for a higher peer would not hear that it has died. With `watch_listeners`, this
/// rank connects to its listener as well and says nothing: the end of that connection, and that
/// nobody listens any more, tell of its end.
Result<std::vector<ProvenLink>> ConnectAll(ConnectPlan plan, const Logger& logger);

}  // namespace hvl::net
