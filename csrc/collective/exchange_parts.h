// Where the parts of an all-to-all lie in the memory of one rank.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/collective/backend.h"

namespace hvl::collective {

/// What this rank has for a peer, and the place for what the peer has for this rank. Of the rank
/// itself: from where to where it copies.
struct ExchangePart {
  std::span<const std::byte> outgoing;
  std::span<std::byte> incoming;
};

/// By peer, as rank `rank` of `ranks` sees the piece.
inline std::vector<ExchangePart> PartsByPeer(const ExchangePiece& piece, int rank, int ranks) {
  const auto own = static_cast<std::size_t>(rank);
  const auto count = static_cast<std::size_t>(ranks);
  HVL_CHECK(piece.bytes.size() == count * count, "one size per pair of ranks");
  std::vector<ExchangePart> parts;
  std::size_t outgoing_begin = 0;
  std::size_t incoming_begin = 0;
  for (std::size_t peer = 0; peer < count; ++peer) {
    const std::size_t outgoing_bytes = piece.bytes[own * count + peer];
    const std::size_t incoming_bytes = piece.bytes[peer * count + own];
    ExchangePart part;
    if (outgoing_bytes > 0) {
      part.outgoing = {static_cast<const std::byte*>(piece.input) + outgoing_begin, outgoing_bytes};
    }
    if (incoming_bytes > 0) {
      part.incoming = {static_cast<std::byte*>(piece.output) + incoming_begin, incoming_bytes};
    }
    parts.push_back(part);
    outgoing_begin += outgoing_bytes;
    incoming_begin += incoming_bytes;
  }
  return parts;
}

}  // namespace hvl::collective
