// A scatter list seen as one long vector of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "csrc/tensor/reduce.h"

namespace hvl::collective {

/// Adjacent pieces are merged; empty ones vanish. `input` or `output` may be null where only the
/// other is used.
class PieceList {
 public:
  struct Piece {
    const std::byte* input;
    std::byte* output;
    std::size_t begin;  ///< place in the long vector
    std::size_t bytes;
  };

  void Add(const void* input, void* output, std::size_t bytes) {
    if (bytes == 0) return;
    const auto* from = static_cast<const std::byte*>(input);
    auto* to = static_cast<std::byte*>(output);
    if (!pieces_.empty() && Continues(pieces_.back(), from, to)) {
      pieces_.back().bytes += bytes;
    } else {
      pieces_.push_back({.input = from, .output = to, .begin = bytes_, .bytes = bytes});
    }
    bytes_ += bytes;
  }

  std::size_t bytes() const { return bytes_; }
  std::span<const Piece> pieces() const { return pieces_; }

  /// Calls visit(part) for the parts of pieces that lie in [begin, end), in order.
  template <typename Visit>
  void ForEach(std::size_t begin, std::size_t end, Visit&& visit) const {
    for (std::size_t index = begin < end ? Find(begin) : 0; begin < end; ++index) {
      const Piece& piece = pieces_[index];
      const std::size_t skipped = begin - piece.begin;
      const std::size_t bytes = std::min(piece.bytes - skipped, end - begin);
      visit(Piece{.input = piece.input == nullptr ? nullptr : piece.input + skipped,
                  .output = piece.output == nullptr ? nullptr : piece.output + skipped,
                  .begin = begin,
                  .bytes = bytes});
      begin += bytes;
    }
  }

  /// How many pieces [begin, end) touches.
  std::size_t CountPieces(std::size_t begin, std::size_t end) const {
    return begin < end ? Find(end - 1) - Find(begin) + 1 : 0;
  }

  /// Copies inputs in [begin, end) to contiguous memory.
  void Gather(std::size_t begin, std::size_t end, std::byte* to,
              tensor::StoreHint hint = tensor::StoreHint::kOrdinary) const {
    ForEach(begin, end, [begin, to, hint](const Piece& part) {
      tensor::Copy(to + (part.begin - begin), part.input, part.bytes, hint);
    });
  }

  /// Copies contiguous memory to outputs in [begin, end); what has no output is skipped.
  void Scatter(std::size_t begin, std::size_t end, const std::byte* from) const {
    ForEach(begin, end, [begin, from](const Piece& part) {
      if (part.output == nullptr) return;
      tensor::Copy(part.output, from + (part.begin - begin), part.bytes);
    });
  }

 private:
  static bool Continues(const Piece& last, const std::byte* input, const std::byte* output) {
    return (last.input == nullptr ? input == nullptr : last.input + last.bytes == input) &&
           (last.output == nullptr ? output == nullptr : last.output + last.bytes == output);
  }

  /// The piece that contains byte `at`.
  std::size_t Find(std::size_t at) const {
    const auto after = std::ranges::upper_bound(pieces_, at, {}, &Piece::begin);
    return static_cast<std::size_t>(after - pieces_.begin()) - 1;
  }

  std::vector<Piece> pieces_;
  std::size_t bytes_ = 0;
};

}  // namespace hvl::collective
