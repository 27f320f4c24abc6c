#include "csrc/trace/event_queue.h"

#include <cstring>

namespace hvl::trace {
namespace {

/// What precedes the two texts of an event.
struct Header {
  TimePoint at;
  std::uint32_t tensor_bytes;
  std::uint32_t what_bytes;
  EventKind kind;
};

}  // namespace

void EventBuffer::Push(const Event& event) {
  const std::size_t needed = sizeof(Header) + event.tensor.size() + event.what.size();
  if (dropped_ > 0 || needed > bytes_.capacity() - bytes_.size()) {
    ++dropped_;
    return;
  }
  const Header header{event.at, static_cast<std::uint32_t>(event.tensor.size()),
                      static_cast<std::uint32_t>(event.what.size()), event.kind};
  const auto* raw = reinterpret_cast<const char*>(&header);
  bytes_.insert(bytes_.end(), raw, raw + sizeof(header));
  bytes_.insert(bytes_.end(), event.tensor.begin(), event.tensor.end());
  bytes_.insert(bytes_.end(), event.what.begin(), event.what.end());
}

void EventBuffer::Clear() {
  bytes_.clear();
  dropped_ = 0;
}

Event EventBuffer::Read(std::size_t* offset) const {
  Header header;
  std::memcpy(&header, bytes_.data() + *offset, sizeof(header));
  const char* texts = bytes_.data() + *offset + sizeof(header);
  *offset += sizeof(header) + header.tensor_bytes + header.what_bytes;
  return {header.kind,
          header.at,
          {texts, header.tensor_bytes},
          {texts + header.tensor_bytes, header.what_bytes}};
}

}  // namespace hvl::trace
