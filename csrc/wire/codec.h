// Control messages to bytes and back. Bytes from a peer are hostile until Decode has accepted them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "csrc/wire/messages.h"
#include "horovodlite/status.h"

namespace hvl::wire {

inline constexpr std::uint8_t kVersion = 2;

/// The message must keep the limits of messages.h (CheckSignature for signatures); that is checked.
/// Texts of a Status are cut to kMaxMessageBytes and made valid UTF-8.
Bytes Encode(const Announce& message);
Bytes Encode(const Decide& message);
Bytes Encode(const Stopped& message);
Bytes Encode(const Bye& message);

using Message = std::variant<Announce, Decide, Bye, Stopped>;

/// Accepts exactly the frames that Encode makes, and shorter or longer spellings of the same
/// numbers. Internal, with the byte offset and what was wrong there, for all others. Memory stays
/// within a constant factor of the frame's size plus kMaxIds.
Result<Message> Decode(std::span<const std::byte> frame);

/// The generation of a frame, without reading the rest, so that frames of another generation can be
/// dropped unread.
Result<std::uint64_t> PeekGeneration(std::span<const std::byte> frame);

}  // namespace hvl::wire
