#include "csrc/net/connector.h"

#include <algorithm>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"
#include "csrc/net/link_maker.h"

namespace hvl::net {
namespace {

class Connector final : public LinkOwner {
 public:
  Connector(ConnectPlan plan, const Logger& logger)
      : rank_(plan.rank),
        peers_(std::move(plan.peers)),
        process_fds_(std::move(plan.process_fds)),
        deadline_(plan.deadline),
        links_(plan.addresses.size()),
        maker_({.rank = plan.rank,
                .job_id = std::move(plan.job_id),
                .generation = plan.generation,
                .channel = plan.channel,
                .secret = plan.secret,
                .listener = std::move(plan.listener),
                .addresses = std::move(plan.addresses),
                .noun = "connection"},
               *this, logger) {
    for (const int peer : peers_)
      if (peer < rank_) maker_.Dial(peer);
  }

  Result<std::vector<ProvenLink>> Run() {
    while (connected_ < peers_.size()) {
      if (SteadyClock().Now() >= deadline_) return TimedOut();
      std::vector<int> processes;  // of missing peers
      for (const int peer : peers_)
        if (!Connected(peer) && ProcessOf(peer) >= 0) processes.push_back(ProcessOf(peer));
      HVL_RETURN_IF_ERROR(maker_.Turn(processes, deadline_));
      HVL_RETURN_IF_ERROR(CheckProcesses());
    }
    return std::move(links_);
  }

  bool Expects(int peer) const override {
    return std::ranges::find(peers_, peer) != peers_.end() && !Connected(peer);
  }
  Status Take(int peer, UniqueFd socket, const Handshake& handshake) override {
    links_[static_cast<std::size_t>(peer)] = {std::move(socket), handshake.Keys()};
    ++connected_;
    return Status::Ok();
  }

 private:
  bool Connected(int peer) const { return links_[static_cast<std::size_t>(peer)].socket.valid(); }
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

  const int rank_;
  const std::vector<int> peers_;
  const std::vector<int> process_fds_;
  const TimePoint deadline_;
  std::vector<ProvenLink> links_;  // by rank; valid = connected
  std::size_t connected_ = 0;
  LinkMaker maker_;
};

}  // namespace

Result<std::vector<ProvenLink>> ConnectAll(ConnectPlan plan, const Logger& logger) {
  HVL_CHECK(plan.process_fds.size() == plan.addresses.size(),
            "one address and one process per rank");
  return Connector(std::move(plan), logger).Run();
}

}  // namespace hvl::net
