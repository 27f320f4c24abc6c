// How the launcher words its errors.
#pragma once

#include <string>
#include <system_error>
#include <utility>

#include "horovodlite/status.h"

namespace hvl::launcher {

/// The words for an errno, safe to use with several threads around.
inline std::string ErrnoText(int error) { return std::generic_category().message(error); }

/// The user has asked for something that does not exist or make sense.
inline Status Invalid(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

}  // namespace hvl::launcher
