// Parts of the long vector that the pieces of a reduction form.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/collective/backend.h"

namespace hvl::collective {

/// The bytes [begin, end) of the vector; both are between elements.
inline std::vector<ReducePiece> CutOut(std::span<const ReducePiece> pieces,
                                       std::size_t element_bytes, std::size_t begin,
                                       std::size_t end) {
  std::vector<ReducePiece> inside;
  std::size_t piece_begin = 0;
  for (const ReducePiece& piece : pieces) {
    const std::size_t piece_end =
        piece_begin + static_cast<std::size_t>(piece.element_count) * element_bytes;
    const std::size_t from = std::clamp(begin, piece_begin, piece_end) - piece_begin;
    const std::size_t to = std::clamp(end, piece_begin, piece_end) - piece_begin;
    if (from < to) {
      auto* const output = static_cast<std::byte*>(piece.output);
      inside.push_back({.input = static_cast<const std::byte*>(piece.input) + from,
                        .output = output == nullptr ? nullptr : output + from,
                        .element_count = static_cast<std::int64_t>((to - from) / element_bytes)});
    }
    piece_begin = piece_end;
  }
  return inside;
}

/// What a reduce-scatter makes for each rank, by rank: its parts of all pieces. Only those of
/// `rank` itself have outputs.
inline std::vector<std::vector<ReducePiece>> PartsByOwner(std::span<const ScatterPiece> pieces,
                                                          int rank, int ranks,
                                                          std::size_t element_bytes) {
  std::vector<std::vector<ReducePiece>> parts(static_cast<std::size_t>(ranks));
  for (const ScatterPiece& piece : pieces) {
    HVL_CHECK(piece.rank_elements.size() == parts.size(), "one part per rank");
    std::size_t offset = 0;
    for (std::size_t owner = 0; owner < parts.size(); ++owner) {
      const std::int64_t elements = piece.rank_elements[owner];
      if (elements == 0) continue;  // the input may be null
      parts[owner].push_back({.input = static_cast<const std::byte*>(piece.input) + offset,
                              .output = static_cast<int>(owner) == rank ? piece.output : nullptr,
                              .element_count = elements});
      offset += static_cast<std::size_t>(elements) * element_bytes;
    }
  }
  return parts;
}

/// Elements of all pieces together.
inline std::int64_t CountElements(std::span<const ReducePiece> pieces) {
  std::int64_t elements = 0;
  for (const ReducePiece& piece : pieces) elements += piece.element_count;
  return elements;
}

}  // namespace hvl::collective
