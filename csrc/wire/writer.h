// Appends the primitives that Reader reads.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "csrc/wire/messages.h"

namespace hvl::wire {

constexpr std::size_t VarintBytes(std::uint64_t value) {
  std::size_t bytes = 1;
  for (; value >= 0x80U; value >>= 7) ++bytes;
  return bytes;
}

class Writer {
 public:
  void U8(std::uint8_t value) { bytes_.push_back(std::byte{value}); }

  void Varint(std::uint64_t value) {
    while (value >= 0x80U) {
      U8(static_cast<std::uint8_t>(value | 0x80U));
      value >>= 7;
    }
    U8(static_cast<std::uint8_t>(value));
  }

  void Signed(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    Varint((bits << 1) ^ (value < 0 ? ~std::uint64_t{0} : 0));
  }

  void Double(double value) { U64(std::bit_cast<std::uint64_t>(value)); }

  void U64(std::uint64_t bits) {
    for (int shift = 0; shift < 64; shift += 8) U8(static_cast<std::uint8_t>(bits >> shift));
  }

  void Text(std::string_view text) {
    Varint(text.size());
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), data, data + text.size());
  }

  std::size_t size() const { return bytes_.size(); }
  Bytes Take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

}  // namespace hvl::wire
