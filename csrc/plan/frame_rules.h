// What the two sides of the negotiation have in common about the frames between them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "horovodlite/status.h"

namespace hvl::plan {

/// Announcements and decisions are cut into frames of about this size.
inline constexpr std::size_t kFrameBytes = std::size_t{1} << 20;

/// A peer has sent something that follows the format, but cannot be meant.
inline Status Nonsense(std::string text) { return {StatusCode::kInternal, std::move(text)}; }

}  // namespace hvl::plan
