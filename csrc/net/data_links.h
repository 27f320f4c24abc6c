// Authenticated TCP connections between pairs of ranks, for a data plane. Each is made when an
// algorithm first needs it, so that a rank has as many sockets as its algorithms have neighbours.
#pragma once

#include <poll.h>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
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
class DataLinks {
 public:
  DataLinks(DataPlan plan, Logger logger);
  /// Ends all connections. In a forked child it leaves those of its parent alone.
  ~DataLinks();
  DataLinks(const DataLinks&) = delete;
  DataLinks& operator=(const DataLinks&) = delete;

  int rank() const { return plan_.rank; }
  int size() const { return static_cast<int>(plan_.addresses.size()); }
  /// The connection to `peer` (TCP_NODELAY, non-blocking); -1 = none yet.
  int socket(int peer) const { return sockets_[static_cast<std::size_t>(peer)].get(); }
  /// How many there are. Any thread.
  int connected() const { return connected_; }

  /// Blocks until there is a connection to every one of `peers`; serves other ranks that connect
  /// meanwhile. Aborted once `stop_event` is readable. Other errors name the rank: Unavailable (it
  /// does not listen any more), Mismatch (it does not know the secret), Timeout.
  Status Connect(std::span<const int> peers, int stop_event);

 private:
  // A connection that this rank opens, again and again until it stands. It waits for the answer of
  // a busy peer as long as there is time: only the listening side gives up, by closing. If both
  // did, one side could take for connected what the other one has just left.
  struct Dial {
    int peer = 0;
    UniqueFd socket = {};  // invalid between attempts
    std::optional<Handshake> handshake = {};
    TimePoint due = {};  // start of the next attempt
    Duration backoff = {};
    std::string last_error = {};
  };
  // A connection that somebody opened to this rank and that is not proven yet.
  struct Visitor {
    UniqueFd socket;
    Handshake handshake;
    TimePoint expires;
  };

  bool Connected(int peer) const { return socket(peer) >= 0; }
  bool AllConnected(std::span<const int> peers) const;
  LinkIdentity Identity(int client_rank, int server_rank) const;
  Status Establish(int peer, UniqueFd socket);

  void AddDials(std::span<const int> peers);
  Status StartDueDials();
  Status AdvanceDials();
  static void Retry(Dial& dial, const std::string& why);
  Status DialFailed(const Dial& dial, const Status& cause) const;

  Status AdvanceVisitors();
  Status AcceptVisitors();

  void Wait(int stop_event, TimePoint deadline);
  bool Ready(int fd) const;
  Status TimedOut(std::span<const int> peers) const;

  DataPlan plan_;  // the listener is closed once everybody is connected
  const Logger logger_;
  const int owner_pid_;
  std::vector<UniqueFd> sockets_;  // by rank
  std::atomic<int> connected_ = 0;
  std::vector<Dial> dials_;
  std::deque<Visitor> visitors_;  // oldest first
  std::vector<pollfd> polled_;    // by descriptor
  bool warned_ = false;
};

}  // namespace hvl::net
