// How two ranks come by an authenticated connection: of a pair, the higher rank connects and the
// lower one accepts. What Connector (all links at once, during set-up) and DataLinks (one by one,
// when they are needed) have in common.
#pragma once

#include <poll.h>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/net/fd.h"
#include "csrc/net/handshake.h"
#include "csrc/net/secret.h"
#include "csrc/net/silence.h"
#include "csrc/net/socket.h"
#include "horovodlite/status.h"

namespace hvl::net {

struct LinkPlan {
  int rank = 0;
  std::string job_id;
  std::uint64_t generation = 0;
  Channel channel = Channel::kControl;
  Secret secret;
  Listener listener;                   ///< where higher ranks find this one
  std::vector<std::string> addresses;  ///< of all ranks' listeners
  std::string_view noun;               ///< what it makes, in messages; outlives it
  /// Of TCP: a host that shows no sign of life for this long is lost; zero: it is tried for ever.
  Duration silence_limit{};
};

/// Who wants the connections. Called by the thread that calls Turn.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  /// Whether a connection that `peer`, a higher rank or none, has opened is welcome.
  virtual bool Expects(int peer) const = 0;
  /// Takes a connection that both ends have proven. An error ends the turn.
  virtual Status Take(int peer, UniqueFd socket, const Handshake& handshake) = 0;
};

/// One loop over non-blocking sockets, so that no order of arrival can block it. Strangers that
/// reach the listener are refused and do not disturb. Calls come from one thread at a time.
class LinkMaker {
 public:
  /// `owner` and `logger` must outlive it.
  LinkMaker(LinkPlan plan, LinkOwner& owner, const Logger& logger);
  ~LinkMaker() = default;
  LinkMaker(const LinkMaker&) = delete;
  LinkMaker& operator=(const LinkMaker&) = delete;

  const LinkPlan& plan() const { return plan_; }
  int size() const { return static_cast<int>(plan_.addresses.size()); }

  /// Begins to connect to `peer`, a lower rank, unless it does so already; goes on, again and
  /// again, until its owner has the connection.
  void Dial(int peer);
  /// Sleeps until something can change, something happens at one of `watched`, or `deadline`; then
  /// moves on what can. Errors name the rank: Unavailable (it does not listen any more, or its host
  /// is silent), Mismatch (it does not know the secret), or what the owner said.
  Status Turn(std::span<const pollfd> watched, TimePoint deadline);
  /// Whether the last turn found something at `fd`, one of its `watched`.
  bool Ready(int fd) const;
  /// Moves on the connection that is being opened to `peer`, whether or not the last turn found
  /// something there.
  Status Hurry(int peer);

  /// "; last attempt to reach rank ...: ..." of an attempt that failed; empty if none did.
  std::string LastFailure() const;
  void StopListening() { plan_.listener.socket.Reset(); }

 private:
  // A connection that this rank opens. It waits for the answer of a busy peer as long as there is
  // time: only the listening side gives up, by closing. If both did, one side could take for
  // connected what the other one has just left.
  struct Outgoing {
    int peer = 0;
    UniqueFd socket = {};  // invalid between attempts
    std::optional<Handshake> handshake = {};
    TimePoint due = {};  // start of the next attempt
    Duration backoff = {};
    std::string last_error = {};
    bool taken = false;
    Unanswered unanswered;
  };
  // A connection that somebody opened to this rank and that is not proven yet.
  struct Visitor {
    UniqueFd socket;
    Handshake handshake;
    TimePoint expires;
  };

  const std::string& AddressOf(int peer) const {
    return plan_.addresses[static_cast<std::size_t>(peer)];
  }
  LinkIdentity Identity(int client_rank, int server_rank) const;
  Status StartDue();
  Status Start(Outgoing& dial, TimePoint now);
  Status Advance(Outgoing& dial);
  static void Retry(Outgoing& dial, const std::string& why);
  Status Failed(const Outgoing& dial, const Status& cause) const;
  Status AdvanceVisitors();
  Status AcceptVisitors();
  void Wait(std::span<const pollfd> watched, TimePoint deadline);

  LinkPlan plan_;
  LinkOwner& owner_;
  const Logger& logger_;
  std::vector<Outgoing> dials_;
  std::deque<Visitor> visitors_;  // oldest first
  std::vector<pollfd> polled_;    // by descriptor
  bool warned_ = false;
};

}  // namespace hvl::net
