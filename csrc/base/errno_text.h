// What an errno means.
#pragma once

#include <string>
#include <system_error>

namespace hvl {

/// As strerror, but safe to use with several threads around.
inline std::string ErrnoText(int error) { return std::generic_category().message(error); }

}  // namespace hvl
