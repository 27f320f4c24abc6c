#include "csrc/net/connector.h"

#include <poll.h>
#include <algorithm>
#include <cerrno>
#include <deque>
#include <optional>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"

namespace hvl::net {
namespace {

constexpr Duration kFirstRetry = std::chrono::milliseconds(2);
constexpr Duration kLongestRetry = std::chrono::milliseconds(200);
// Far fewer than the visitors that may be half open: in a flood, everybody still gets several turns
// before somebody newer pushes him out.
constexpr int kVisitorsPerTurn = 16;

// A connection that this rank opens, again and again until it stands. It waits for the answer of a
// busy peer as long as there is time: only the listening side gives up, by closing. If both did,
// one side could take for connected what the other one has just left.
struct Dial {
  explicit Dial(int target) : peer(target) {}

  int peer;
  UniqueFd socket;  // invalid between attempts
  std::optional<Handshake> handshake;
  TimePoint due;  // start of the next attempt
  Duration backoff = kFirstRetry;
  std::string last_error;
};

// A connection that somebody opened to this rank and that is not proven yet.
struct Visitor {
  UniqueFd socket;
  Handshake handshake;
  TimePoint expires;
};

class Connector {
 public:
  Connector(ConnectPlan plan, const Logger& logger)
      : plan_(std::move(plan)), logger_(logger), links_(plan_.addresses.size()) {
    for (const int peer : plan_.peers) {
      if (peer < plan_.rank) dials_.emplace_back(peer);
    }
  }

  Result<std::vector<ProvenLink>> Run() {
    while (connected_ < plan_.peers.size()) {
      if (SteadyClock().Now() >= plan_.deadline) return TimedOut();
      HVL_RETURN_IF_ERROR(StartDueDials());
      Wait();
      for (Dial& dial : dials_)
        if (dial.socket.valid() && Ready(dial.socket.get())) HVL_RETURN_IF_ERROR(Advance(dial));
      AdvanceVisitors();
      HVL_RETURN_IF_ERROR(AcceptVisitors());
      HVL_RETURN_IF_ERROR(CheckProcesses());
    }
    return std::move(links_);
  }

 private:
  bool Connected(int peer) const { return links_[static_cast<std::size_t>(peer)].socket.valid(); }
  const std::string& AddressOf(int peer) const {
    return plan_.addresses[static_cast<std::size_t>(peer)];
  }

  void Establish(int peer, UniqueFd socket, const Handshake& handshake) {
    links_[static_cast<std::size_t>(peer)] = {std::move(socket), handshake.Keys()};
    ++connected_;
  }

  Status TimedOut() const {
    std::vector<int> missing;
    std::string detail;
    for (const int peer : plan_.peers)
      if (!Connected(peer)) missing.push_back(peer);
    for (const Dial& dial : dials_) {
      if (detail.empty() && !Connected(dial.peer) && !dial.last_error.empty())
        detail = Format("; last attempt to reach rank {} at {}: {}", dial.peer,
                        AddressOf(dial.peer), dial.last_error);
    }
    return {StatusCode::kTimeout,
            Format("rank {} could not connect in time to {}, which joined{}", plan_.rank,
                   RanksText(missing), detail),
            missing.front()};
  }

  LinkIdentity Identity(int client_rank, int server_rank) const {
    return {plan_.job_id, plan_.generation, plan_.channel, client_rank, server_rank};
  }

  Status StartDueDials() {
    const TimePoint now = SteadyClock().Now();
    for (Dial& dial : dials_) {
      if (dial.socket.valid() || dial.due > now || Connected(dial.peer)) continue;
      auto socket = StartConnect(AddressOf(dial.peer));
      if (socket.status().code() == StatusCode::kTimeout) {
        Retry(dial, socket.status().message());
        continue;
      }
      if (!socket.ok()) return DialFailed(dial, socket.status());
      if (!socket->valid()) {
        Retry(dial, "its listener is full");
        continue;
      }
      dial.socket = std::move(*socket);
      dial.handshake = Handshake::Connect(Identity(plan_.rank, dial.peer), plan_.secret);
    }
    return Status::Ok();
  }

  void Retry(Dial& dial, const std::string& why) {
    dial.socket.Reset();
    dial.handshake.reset();
    dial.last_error = why;
    dial.due = SteadyClock().Now() + dial.backoff;
    dial.backoff = std::min(2 * dial.backoff, kLongestRetry);
  }

  Status DialFailed(const Dial& dial, const Status& cause) const {
    const bool refused = cause.code() == StatusCode::kUnavailable;
    return {
        cause.code(),
        Format("rank {} cannot connect to rank {} at {}{}: {}", plan_.rank, dial.peer,
               AddressOf(dial.peer),
               refused ? ", which has joined but does not listen any more" : "", cause.message()),
        dial.peer};
  }

  // Everything that can change: sockets in progress, the listener, processes of missing peers.
  void Wait() {
    TimePoint wake = plan_.deadline;
    polled_.clear();
    const auto watch = [this](int fd, short events) { polled_.push_back({fd, events, 0}); };
    watch(plan_.listener.socket.get(), POLLIN);
    for (const Dial& dial : dials_) {
      if (Connected(dial.peer)) continue;
      if (dial.socket.valid()) {
        watch(dial.socket.get(), dial.handshake->opening().empty() ? POLLIN : POLLOUT);
      } else {
        wake = std::min(wake, dial.due);
      }
    }
    for (const Visitor& visitor : visitors_) {
      wake = std::min(wake, visitor.expires);
      watch(visitor.socket.get(), POLLIN);
    }
    for (const int peer : plan_.peers) {
      const int process = plan_.process_fds[static_cast<std::size_t>(peer)];
      if (process >= 0 && !Connected(peer)) watch(process, POLLIN);
    }
    const int ready = ::poll(polled_.data(), polled_.size(), PollMillis(wake));
    HVL_CHECK(ready >= 0 || errno == EINTR, Format("poll failed: errno {}", errno));
    if (ready < 0) polled_.clear();
    std::ranges::sort(polled_, {}, &pollfd::fd);
  }

  bool Ready(int fd) const {
    const auto found = std::ranges::lower_bound(polled_, fd, {}, &pollfd::fd);
    return found != polled_.end() && found->fd == fd && found->revents != 0;
  }

  Status Advance(Dial& dial) {
    if (!dial.handshake->opening().empty()) {
      const Status reached = FinishConnect(dial.socket.get());
      if (reached.code() == StatusCode::kUnavailable) return DialFailed(dial, reached);
      if (!reached.ok()) {
        Retry(dial, reached.message());
        return Status::Ok();
      }
    }
    const Status status = dial.handshake->Advance(dial.socket.get());
    // A wrong secret stays wrong; a connection that was cut may have been pushed out by strangers.
    if (status.code() == StatusCode::kMismatch) return DialFailed(dial, status);
    if (!status.ok()) {
      Retry(dial, status.message());
    } else if (dial.handshake->done()) {
      Establish(dial.peer, std::move(dial.socket), *dial.handshake);
    }
    return Status::Ok();
  }

  // A peer may have finished its part and left. Then its last message is here, though perhaps not
  // when the poll looked at its socket. As a client, such a peer has waited for our last message.
  Status CheckProcesses() {
    for (const int peer : plan_.peers) {
      const int process = plan_.process_fds[static_cast<std::size_t>(peer)];
      if (process < 0 || Connected(peer) || !Ready(process)) continue;
      const auto dial = std::ranges::find(dials_, peer, &Dial::peer);
      if (dial != dials_.end() && dial->socket.valid()) HVL_RETURN_IF_ERROR(Advance(*dial));
      if (Connected(peer)) continue;
      return {StatusCode::kUnavailable,
              Format("the process of rank {} ended while the ranks were connecting", peer), peer};
    }
    return Status::Ok();
  }

  bool IsExpected(int visitor) const {
    return visitor > plan_.rank && std::ranges::find(plan_.peers, visitor) != plan_.peers.end() &&
           !Connected(visitor);
  }

  void AdvanceVisitors() {
    const TimePoint now = SteadyClock().Now();
    std::erase_if(visitors_, [this, now](Visitor& visitor) {
      if (!Ready(visitor.socket.get())) return visitor.expires <= now;
      const Status status = visitor.handshake.Advance(visitor.socket.get());
      if (status.ok() && !visitor.handshake.done()) return false;
      const int peer = visitor.handshake.client_rank();
      if (!status.ok()) {
        // One warning is news; a flood of them would be an attack of its own.
        if (!std::exchange(warned_, true))
          HVL_LOG(logger_, kWarning, "net", "refused a connection: {}", status.message());
      } else if (!IsExpected(peer)) {
        HVL_LOG(logger_, kWarning, "net", "refused a second connection as rank {}", peer);
      } else {
        Establish(peer, std::move(visitor.socket), visitor.handshake);
      }
      return true;
    });
  }

  Status AcceptVisitors() {
    if (!Ready(plan_.listener.socket.get())) return Status::Ok();
    HVL_ASSIGN_OR_RETURN(const Transport transport, TransportOf(plan_.listener.address));
    const std::size_t limit = kMaxHalfOpen + plan_.peers.size();
    for (int accepted = 0; accepted < kVisitorsPerTurn; ++accepted) {
      HVL_ASSIGN_OR_RETURN(UniqueFd socket, Accept(plan_.listener.socket.get(), transport));
      if (!socket.valid()) break;
      if (visitors_.size() == limit) visitors_.pop_front();
      visitors_.push_back({std::move(socket),
                           Handshake::Accept(Identity(kStoreRank, plan_.rank), plan_.secret),
                           SteadyClock().Now() + kHandshakeTimeout});
    }
    return Status::Ok();
  }

  ConnectPlan plan_;
  const Logger& logger_;
  std::vector<ProvenLink> links_;  // by rank; valid = connected
  std::size_t connected_ = 0;
  std::vector<Dial> dials_;
  std::deque<Visitor> visitors_;  // oldest first
  std::vector<pollfd> polled_;    // by descriptor
  bool warned_ = false;
};

}  // namespace

Result<std::vector<ProvenLink>> ConnectAll(ConnectPlan plan, const Logger& logger) {
  HVL_CHECK(plan.process_fds.size() == plan.addresses.size(),
            "one address and one process per rank");
  return Connector(std::move(plan), logger).Run();
}

}  // namespace hvl::net
