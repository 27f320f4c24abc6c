// How the launcher words its errors.
#pragma once

#include <string>
#include <utility>

#include "csrc/base/errno_text.h"
#include "horovodlite/status.h"

namespace hvl::launcher {

/// The user has asked for something that does not exist or make sense.
inline Status Invalid(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

}  // namespace hvl::launcher
