// Little-endian encoding for this room's fixed messages. The reader checks every access against the
// bytes that are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace hvl::net {

/// Appends to a string used as a byte buffer.
class ByteWriter {
 public:
  template <typename T>
  void Integer(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
  }
  void Raw(std::string_view text) { bytes_.append(text); }
  /// A 32-bit length, then the bytes.
  void Text(std::string_view text) {
    Integer(static_cast<std::uint32_t>(text.size()));
    Raw(text);
  }
  void PadTo(std::size_t size) { bytes_.resize(size, '\0'); }

  const std::string& str() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what ByteWriter wrote. After the first read past the end, ok() is false and every value is
/// zero or empty.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  explicit ByteReader(std::string_view text)
      : bytes_(std::as_bytes(std::span(text.data(), text.size()))) {}

  template <typename T>
  T Integer() {
    static_assert(std::is_unsigned_v<T>);
    T value = 0;
    const std::span<const std::byte> part = Take(sizeof(T));
    for (std::size_t i = 0; i < part.size(); ++i)
      value = static_cast<T>(value | (static_cast<T>(part[i]) << (8 * i)));
    return value;
  }
  std::string_view Raw(std::size_t size) {
    const std::span<const std::byte> part = Take(size);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::string_view Text() { return Raw(Integer<std::uint32_t>()); }

  std::size_t remaining() const { return bytes_.size(); }
  bool ok() const { return ok_; }

 private:
  std::span<const std::byte> Take(std::size_t size) {
    if (!ok_ || size > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::span<const std::byte> part = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return part;
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

/// A string as the bytes it holds.
inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace hvl::net
