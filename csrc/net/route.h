// What leaders pass on for others: frames between ranks without a link of their own, and the news
// that ranks are lost.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "csrc/net/frames.h"
#include "horovodlite/status.h"

namespace hvl::net {

/// In front of a frame that is passed on: 4 bytes each.
struct Route {
  int source = 0;
  int destination = 0;

  bool operator==(const Route&) const = default;
};

void EncodeRoute(Route route, std::span<std::byte, kRouteBytes> out);
/// Any values; to be checked against the world.
Route DecodeRoute(std::span<const std::byte, kRouteBytes> in);

/// Ranks that nobody beyond the teller reaches any more.
struct LossNotice {
  std::vector<int> ranks;  ///< ascending, with the culprit
  Status cause;            ///< not OK; with the culprit
};

std::string EncodeLoss(const LossNotice& loss);
/// Internal unless it is about ranks of a world of `size`.
Result<LossNotice> DecodeLoss(std::span<const std::byte> bytes, int size);

}  // namespace hvl::net
