// Reads a frame that may be hostile: every access is checked, the first fault sticks, and after it
// all reads give zero. No exceptions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "csrc/base/str.h"
#include "csrc/wire/text.h"
#include "horovodlite/status.h"

namespace hvl::wire {

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return error_.empty(); }
  std::size_t remaining() const { return bytes_.size() - offset_; }
  /// Internal with the place and the reason of the first fault, or OK.
  Status status() const { return ok() ? Status::Ok() : Status(StatusCode::kInternal, error_); }

  /// Marks the frame as bad; the first reason counts.
  void Fail(std::string_view reason) {
    if (ok()) error_ = Format("byte {} of {}: {}", offset_, bytes_.size(), reason);
    offset_ = bytes_.size();
  }

  std::uint8_t U8() {
    if (remaining() == 0) {
      Fail("the frame ends too early");
      return 0;
    }
    return std::to_integer<std::uint8_t>(bytes_[offset_++]);
  }

  /// LEB128: 7 bits per byte, low ones first, the high bit says that more follow.
  std::uint64_t Varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t byte = U8();
      const std::uint64_t bits = byte & 0x7fU;
      if (shift == 63 && bits > 1) break;
      value |= bits << shift;
      if ((byte & 0x80U) == 0) return ok() ? value : 0;
    }
    Fail("a number needs more than 64 bits");
    return 0;
  }

  /// A number in [0, limit].
  std::uint64_t Bounded(std::uint64_t limit, std::string_view what) {
    const std::uint64_t value = Varint();
    if (value <= limit) return value;
    Fail(Format("{} is {}, the most is {}", what, value, limit));
    return 0;
  }

  /// Zigzag: 0, -1, 1, -2, ... are sent as 0, 1, 2, 3, ...
  std::int64_t Signed() {
    const std::uint64_t value = Varint();
    return static_cast<std::int64_t>((value >> 1) ^ (0 - (value & 1)));
  }

  /// The number of items that follow, each of at least `item_bytes`: never more than fit into what
  /// is left of the frame, so that the caller may reserve memory for them.
  std::size_t Count(std::size_t item_bytes, std::string_view what) {
    const std::uint64_t count = Varint();
    if (count <= remaining() / item_bytes) return static_cast<std::size_t>(count);
    Fail(Format("{} {} do not fit into the {} bytes left", count, what, remaining()));
    return 0;
  }

  /// 8 bytes, low ones first.
  std::uint64_t U64() {
    std::uint64_t bits = 0;
    for (int shift = 0; shift < 64; shift += 8) bits |= std::uint64_t{U8()} << shift;
    return bits;
  }
  double Double() { return std::bit_cast<double>(U64()); }

  /// Length and bytes; points into the frame.
  std::string_view Utf8(std::size_t max_bytes, std::string_view what) {
    const std::size_t size = Count(1, what);
    if (size > max_bytes) {
      Fail(Format("{} of {} bytes, the most is {}", what, size, max_bytes));
      return {};
    }
    const auto raw = Raw(size);
    const std::string_view text(reinterpret_cast<const char*>(raw.data()), raw.size());
    if (!IsUtf8(text)) {
      Fail(Format("{} is not UTF-8", what));
      return {};
    }
    return text;
  }

  std::span<const std::byte> Raw(std::size_t size) {
    if (size > remaining()) {
      Fail("the frame ends too early");
      return {};
    }
    const auto raw = bytes_.subspan(offset_, size);
    offset_ += size;
    return raw;
  }

  void ExpectEnd() {
    if (remaining() != 0) Fail(Format("{} bytes too many", remaining()));
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t offset_ = 0;
  std::string error_;
};

}  // namespace hvl::wire
