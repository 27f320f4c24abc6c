// A byte stream between hosts that nobody on the way can change unseen. It is cut into records:
//
//   4 bytes     size of the payload, at most kMaxRecordBytes
//   n bytes     payload
//   16 bytes    the first half of HMAC-SHA256(key, number of the record (8 bytes) | size | payload)
//
// Records of each direction are numbered from 0 and have a key of their own, which the hand-shake
// of the connection has made. The number is not sent: a record that was left out, repeated, moved
// or taken from another connection has a digest that does not fit. Contents are not hidden.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "csrc/net/frames.h"
#include "csrc/net/hmac.h"
#include "csrc/net/secret.h"
#include "horovodlite/status.h"

namespace hvl::net {

/// Small enough that a slow link completes one long before its silence would count as a death.
inline constexpr std::size_t kMaxRecordBytes = 16 << 10;
inline constexpr std::size_t kRecordHeaderBytes = 4;
inline constexpr std::size_t kRecordTagBytes = 16;

/// The sending end of one direction.
class Sealer {
 public:
  explicit Sealer(const Secret& key) : mac_(key) {}
  /// Appends `parts`, one after the other, as records; one empty record when there is nothing.
  void Seal(std::span<const std::span<const std::byte>> parts, ByteQueue& out);

 private:
  void FinishRecord(ByteQueue& out);

  Mac mac_;
  std::uint64_t number_ = 0;
  std::vector<std::byte> record_;  // the number, the size, the payload
};

/// The receiving end.
class Opener {
 public:
  explicit Opener(const Secret& key) : mac_(key) {}
  /// Moves the payload of all whole records from the front of `records` to the end of `out`, and
  /// returns how many there were. Internal: the next one is none of the other end's; those before
  /// it have been moved.
  Result<std::size_t> Open(ByteQueue& records, ByteQueue& out);

 private:
  Mac mac_;
  std::uint64_t number_ = 0;
};

}  // namespace hvl::net
