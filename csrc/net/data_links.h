// Authenticated TCP connections between pairs of ranks, for a data plane. Each is made when an
// algorithm first needs it, so that a rank has as many sockets as its algorithms have neighbours.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/net/fd.h"
#include "csrc/net/handshake.h"
#include "csrc/net/link_maker.h"
#include "csrc/net/secret.h"
#include "csrc/net/socket.h"
#include "horovodlite/status.h"

namespace hvl::net {

struct DataPlan {
  int rank = 0;
  std::string job_id;
  std::uint64_t generation = 0;
  Secret secret;
  Listener listener;                   ///< where higher ranks find this one
  std::vector<std::string> addresses;  ///< of all ranks' data listeners
  Duration timeout{};                  ///< for each Connect
};

/// Of a pair, the higher rank connects and the lower one accepts; both do it inside Connect, when
/// each comes to the operation that needs the pair. Who comes early waits there, as everywhere in a
/// collective operation. Strangers that reach the listener are refused and do not disturb.
///
/// Calls come from one thread at a time.
class DataLinks final : private LinkOwner {
 public:
  DataLinks(DataPlan plan, Logger logger);
  /// Ends all connections. In a forked child it leaves those of its parent alone.
  ~DataLinks() override;
  DataLinks(const DataLinks&) = delete;
  DataLinks& operator=(const DataLinks&) = delete;

  int rank() const { return maker_.plan().rank; }
  int size() const { return maker_.size(); }
  /// The connection to `peer` (TCP_NODELAY, non-blocking); -1 = none yet.
  int socket(int peer) const { return sockets_[static_cast<std::size_t>(peer)].get(); }
  /// How many there are. Any thread.
  int connected() const { return connected_; }

  /// Blocks until there is a connection to every one of `peers`; serves other ranks that connect
  /// meanwhile. Aborted once `stop_event` is readable. Other errors name the rank: Unavailable (it
  /// does not listen any more), Mismatch (it does not know the secret), Timeout.
  Status Connect(std::span<const int> peers, int stop_event);

 private:
  // Of LinkOwner.
  bool Expects(int peer) const override { return !Connected(peer); }
  Status Take(int peer, UniqueFd socket, const Handshake& handshake) override;

  bool Connected(int peer) const { return socket(peer) >= 0; }
  Status TimedOut(std::span<const int> peers) const;

  const Logger logger_;
  const Duration timeout_;
  const int owner_pid_;
  std::vector<UniqueFd> sockets_;  // by rank
  std::atomic<int> connected_ = 0;
  LinkMaker maker_;  // stops listening once everybody is connected
};

}  // namespace hvl::net
