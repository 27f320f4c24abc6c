// A rank made of raw sockets: joins the rendezvous like any other, then says what the test tells
// it.
#pragma once

#include <unistd.h>
#include <string>
#include <utility>

#include "csrc/net/handshake.h"
#include "csrc/net/process.h"
#include "csrc/net/rank_card.h"
#include "csrc/net/socket.h"
#include "csrc/net/store.h"
#include "tests/support/raw_peer.h"

namespace hvl::test {

/// The address in what a rank publishes at the rendezvous.
inline std::string AddressInBlob(const std::string& blob) {
  return net::DecodeCard(blob, 0)->address;
}

/// Joins as rank 1 of 2 and connects to rank 0's control listener, proven.
inline RawPeer JoinAsRankOne(net::Store& store, const net::Secret& secret,
                             const std::string& job_id) {
  const net::RankCard card{.address = "unix:@nobody-listens-here",
                           .pid = static_cast<std::uint32_t>(::getpid()),
                           .pid_scope = net::PidScope(),
                           .host_id = net::HostId(),
                           .host_name = net::HostName(),
                           .blob = ""};
  const auto met = store.Join(1, 2, net::EncodeCard(card), kHangLimit);
  if (!met.ok()) return RawPeer(net::UniqueFd());
  RawPeer peer(net::StartConnect(AddressInBlob(met->blobs[0])).value());
  peer.Prove(net::Handshake::Connect({.job_id = job_id,
                                      .generation = met->generation,
                                      .channel = net::Channel::kControl,
                                      .client_rank = 1,
                                      .server_rank = 0},
                                     secret));
  return peer;
}

}  // namespace hvl::test
