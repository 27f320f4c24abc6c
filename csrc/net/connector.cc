#include "csrc/net/connector.h"

#include <algorithm>
#include <set>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"
#include "csrc/net/link_maker.h"
#include "csrc/net/listener_watch.h"

namespace hvl::net {
namespace {

class Connector final : public LinkOwner {
 public:
  Connector(ConnectPlan plan, const Logger& logger)
      : rank_(plan.rank),
        peers_(std::move(plan.peers)),
        process_fds_(std::move(plan.process_fds)),
        silence_limit_(plan.silence_limit),
        deadline_(plan.deadline),
        links_(plan.addresses.size()),
        maker_({.rank = plan.rank,
                .job_id = std::move(plan.job_id),
                .generation = plan.generation,
                .channel = plan.channel,
                .secret = plan.secret,
                .listener = std::move(plan.listener),
                .addresses = std::move(plan.addresses),
                .noun = "connection",
                .silence_limit = plan.silence_limit},
               *this, logger) {
    for (const int peer : peers_) {
      if (peer < rank_) {
        maker_.Dial(peer);
      } else if (plan.watch_listeners) {
        watches_.emplace_back(peer, maker_.plan().addresses[static_cast<std::size_t>(peer)],
                              silence_limit_);
      }
    }
  }

  Result<std::vector<ProvenLink>> Run() {
    while (connected_ < peers_.size()) {
      if (SteadyClock().Now() >= deadline_) return TimedOut();
      std::vector<pollfd> watched;
      for (const int peer : peers_) {
        if (!Connected(peer) && ProcessOf(peer) >= 0)
          watched.push_back({ProcessOf(peer), POLLIN, 0});
        if (Connected(peer) && !ended_.contains(peer)) watched.push_back({SocketOf(peer), 0, 0});
      }
      HVL_ASSIGN_OR_RETURN(const TimePoint wake, StartWatches(watched));
      HVL_RETURN_IF_ERROR(maker_.Turn(watched, wake));
      HVL_RETURN_IF_ERROR(CheckProcesses());
      HVL_RETURN_IF_ERROR(CheckListeners());
      HVL_RETURN_IF_ERROR(CheckLinks());
    }
    return std::move(links_);
  }

  bool Expects(int peer) const override {
    return std::ranges::find(peers_, peer) != peers_.end() && !Connected(peer);
  }
  Status Take(int peer, UniqueFd socket, const Handshake& handshake) override {
    links_[static_cast<std::size_t>(peer)] = {std::move(socket), handshake.Keys()};
    ++connected_;
    if (silence_limit_ == Duration::zero()) return Status::Ok();
    return LimitSilence(SocketOf(peer), silence_limit_);
  }

 private:
  int SocketOf(int peer) const { return links_[static_cast<std::size_t>(peer)].socket.get(); }
  bool Connected(int peer) const { return SocketOf(peer) >= 0; }
  int ProcessOf(int peer) const { return process_fds_[static_cast<std::size_t>(peer)]; }

  Status TimedOut() const {
    std::vector<int> missing;
    for (const int peer : peers_)
      if (!Connected(peer)) missing.push_back(peer);
    return {StatusCode::kTimeout,
            Format("rank {} could not connect in time to {}, which joined{}", rank_,
                   RanksText(missing), maker_.LastFailure()),
            missing.front()};
  }

  // A peer may have finished its part and left. Then its last message is here, though perhaps not
  // when the poll looked at its socket. As a client, such a peer has waited for our last message.
  Status CheckProcesses() {
    for (const int peer : peers_) {
      if (Connected(peer) || ProcessOf(peer) < 0 || !maker_.Ready(ProcessOf(peer))) continue;
      HVL_RETURN_IF_ERROR(maker_.Hurry(peer));
      if (Connected(peer)) continue;
      return {StatusCode::kUnavailable,
              Format("the process of rank {} ended while the ranks were connecting", peer), peer};
    }
    return Status::Ok();
  }

  /// Adds what is to be watched; returns when to come back.
  Result<TimePoint> StartWatches(std::vector<pollfd>& watched) {
    TimePoint wake = deadline_;
    std::erase_if(watches_, [this](const ListenerWatch& watch) { return Connected(watch.peer()); });
    for (ListenerWatch& watch : watches_) {
      HVL_RETURN_IF_ERROR(watch.Start());
      if (watch.fd() >= 0) watched.push_back({watch.fd(), POLLIN, 0});
      wake = std::min(wake, watch.due());
    }
    return wake;
  }

  // A peer that has finished its part listens no more; but then it has the last message of this
  // rank, which has sent it as one that has the connection.
  Status CheckListeners() {
    for (ListenerWatch& watch : watches_) {
      if (Connected(watch.peer()) || watch.fd() < 0 || !maker_.Ready(watch.fd())) continue;
      HVL_RETURN_IF_ERROR(watch.Look());
    }
    return Status::Ok();
  }

  // While others are missing, a peer that is connected can be lost with its host. One that has
  // ended is for whoever reads its last words.
  Status CheckLinks() {
    for (const int peer : peers_) {
      if (!Connected(peer) || ended_.contains(peer) || !maker_.Ready(SocketOf(peer))) continue;
      if (IsSilence(TakeError(SocketOf(peer))))
        return SilentHost(peer, "connecting", silence_limit_);
      ended_.insert(peer);
    }
    return Status::Ok();
  }

  const int rank_;
  const std::vector<int> peers_;
  const std::vector<int> process_fds_;
  const Duration silence_limit_;
  const TimePoint deadline_;
  std::set<int> ended_;            // peers whose links stand no more
  std::vector<ProvenLink> links_;  // by rank; valid = connected
  std::size_t connected_ = 0;
  LinkMaker maker_;
  std::vector<ListenerWatch> watches_;
};

}  // namespace

Result<std::vector<ProvenLink>> ConnectAll(ConnectPlan plan, const Logger& logger) {
  HVL_CHECK(plan.process_fds.size() == plan.addresses.size(),
            "one address and one process per rank");
  return Connector(std::move(plan), logger).Run();
}

}  // namespace hvl::net
