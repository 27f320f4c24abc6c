// What a rank publishes at the rendezvous, so that its peers find and watch it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "horovodlite/status.h"

namespace hvl::net {

struct RankCard {
  std::string address = {};         ///< of its control listener; empty in a world of one
  std::string leader_address = {};  ///< where leaders of other hosts find it; empty: nowhere
  std::string data_address = {};    ///< of its data listener; empty in a world of one
  std::uint32_t pid = 0;            ///< in `pid_scope`
  std::string pid_scope = {};       ///< see PidScope()
  std::string host_id = {};         ///< see HostId()
  std::string host_name = {};       ///< of the machine, for messages
  std::string blob = {};            ///< MeshOptions::blob

  bool operator==(const RankCard&) const = default;
};

std::string EncodeCard(const RankCard& card);
/// Mismatch when rank `rank` published something else.
Result<RankCard> DecodeCard(std::string_view bytes, int rank);

}  // namespace hvl::net
