// Ranks of one machine that meet as if they were on several hosts.
#pragma once

#include <string>
#include <utility>

#include "csrc/net/rank_card.h"
#include "csrc/net/store.h"

namespace hvl::test {

/// A store of one rank, which publishes that it is on the host `host`. Between such hosts data and
/// control links are TCP over loopback.
class PretendedHost final : public net::Store {
 public:
  /// `store` must outlive it.
  PretendedHost(net::Store& store, std::string host) : store_(store), host_(std::move(host)) {}

  Result<net::Rendezvous> Join(int rank, int size, const std::string& blob,
                               Duration timeout) override {
    HVL_ASSIGN_OR_RETURN(net::RankCard card, net::DecodeCard(blob, rank));
    card.host_id = host_;
    return store_.Join(rank, size, net::EncodeCard(card), timeout);
  }
  Result<std::string> LocalHost(TimePoint) override { return std::string("127.0.0.1"); }

 private:
  net::Store& store_;
  const std::string host_;
};

}  // namespace hvl::test
