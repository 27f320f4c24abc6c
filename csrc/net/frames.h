// Byte buffers of a link: what waits to be written, and what was read and is not a whole frame yet.
//
// A frame on the wire is 4 bytes of payload size and 4 bytes of kind, little-endian, and the
// payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace hvl::net {

enum class FrameKind : std::uint32_t {
  kUser = 0,
  kGoodbye = 1,     ///< no payload; the sender leaves on purpose
  kDescriptor = 2,  ///< set-up: no payload, carries a file descriptor
  kRouted = 4,      ///< a control frame for or from a rank without a link, see route.h
  kLoss = 5,        ///< news of lost ranks, see route.h
  kNoMore = 6,      ///< no payload; what comes after it, nobody waits for: see leaving.h
};

inline constexpr std::size_t kFrameHeaderBytes = 8;
/// At the front of a kRouted payload, beyond the limit for a frame.
inline constexpr std::size_t kRouteBytes = 8;

struct FrameHeader {
  std::uint32_t payload_bytes = 0;
  FrameKind kind = FrameKind::kUser;
};

inline void EncodeFrameHeader(FrameHeader header, std::span<std::byte, kFrameHeaderBytes> out) {
  const auto kind = static_cast<std::uint32_t>(header.kind);
  for (std::size_t i = 0; i < 4; ++i) {
    out[i] = static_cast<std::byte>((header.payload_bytes >> (8 * i)) & 0xFF);
    out[4 + i] = static_cast<std::byte>((kind >> (8 * i)) & 0xFF);
  }
}

inline FrameHeader DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> in) {
  std::uint32_t fields[2] = {0, 0};
  for (std::size_t i = 0; i < kFrameHeaderBytes; ++i)
    fields[i / 4] |= static_cast<std::uint32_t>(in[i]) << (8 * (i % 4));
  return {fields[0], static_cast<FrameKind>(fields[1])};
}

/// What stands at the front of a link's bytes.
struct NextFrame {
  enum class Is : std::uint8_t { kIncomplete, kFrame, kGoodbye, kCorrupt };
  Is is = Is::kIncomplete;
  FrameHeader header;                  ///< unless incomplete
  std::span<const std::byte> payload;  ///< of a frame
  std::size_t bytes = 0;               ///< of a frame, with its header
};

/// Of the frames after the set-up.
inline bool CarriesPayload(FrameKind kind) {
  return kind == FrameKind::kUser || kind == FrameKind::kRouted || kind == FrameKind::kLoss ||
         kind == FrameKind::kNoMore;
}

/// A frame of a kind that does not belong here, or longer than `max_payload_bytes`, is corrupt,
/// which shows as soon as its header is there.
inline NextFrame FindFrame(std::span<const std::byte> bytes, std::size_t max_payload_bytes) {
  NextFrame next;
  if (bytes.size() < kFrameHeaderBytes) return next;
  next.header = DecodeFrameHeader(bytes.first<kFrameHeaderBytes>());
  const std::size_t payload_bytes = next.header.payload_bytes;
  if (next.header.kind == FrameKind::kRouted) max_payload_bytes += kRouteBytes;
  if (next.header.kind == FrameKind::kNoMore) max_payload_bytes = 0;
  if (next.header.kind == FrameKind::kGoodbye && payload_bytes == 0) {
    next.is = NextFrame::Is::kGoodbye;
  } else if (!CarriesPayload(next.header.kind) || payload_bytes > max_payload_bytes) {
    next.is = NextFrame::Is::kCorrupt;
  } else if (bytes.size() - kFrameHeaderBytes >= payload_bytes) {
    next.is = NextFrame::Is::kFrame;
    next.payload = bytes.subspan(kFrameHeaderBytes, payload_bytes);
    next.bytes = kFrameHeaderBytes + payload_bytes;
  }
  return next;
}

/// Bytes in order, appended at the end and consumed at the front. Grows with what is really there;
/// gives large memory back when it runs empty.
class ByteQueue {
 public:
  std::size_t size() const { return bytes_.size() - head_; }
  bool empty() const { return size() == 0; }
  std::span<const std::byte> front() const { return std::span(bytes_).subspan(head_); }

  void Append(std::span<const std::byte> more) {
    if (head_ > bytes_.size() / 2) {
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
    bytes_.insert(bytes_.end(), more.begin(), more.end());
  }
  void Consume(std::size_t count) {
    head_ += count;
    if (!empty()) return;
    constexpr std::size_t kKeptBytes = 64 << 10;
    if (bytes_.capacity() > kKeptBytes) bytes_ = {};
    bytes_.clear();
    head_ = 0;
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t head_ = 0;
};

}  // namespace hvl::net
