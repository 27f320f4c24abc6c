// Events on their way from any thread to the timeline's writer: bounded, without an allocation per
// event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"

namespace hvl::trace {

enum class EventKind : std::uint8_t { kBegin, kEnd, kInstant };

struct Event {
  EventKind kind;
  TimePoint at;
  std::string_view tensor;
  std::string_view what;  ///< activity or moment; empty for kEnd
};

/// Events packed one after the other. Not thread-safe: the timeline guards it.
class EventBuffer {
 public:
  /// All memory is taken here.
  explicit EventBuffer(std::size_t capacity_bytes) { bytes_.reserve(capacity_bytes); }

  /// Copies the event. When it does not fit, it is dropped and counted, and so is everything after
  /// it until Clear: what is kept has no holes.
  void Push(const Event& event);

  bool empty() const { return bytes_.empty() && dropped_ == 0; }
  std::size_t bytes() const { return bytes_.size(); }
  std::uint64_t dropped() const { return dropped_; }
  void Clear();

  /// Calls `handle(const Event&)` in the order of Push; the views live until Clear.
  template <typename Handle>
  void ForEach(Handle handle) const {
    for (std::size_t offset = 0; offset < bytes_.size();) handle(Read(&offset));
  }

 private:
  Event Read(std::size_t* offset) const;

  std::vector<char> bytes_;  // capacity never changes
  std::uint64_t dropped_ = 0;
};

}  // namespace hvl::trace
