// The words for an errno, safe to use with several threads around.
#pragma once

#include <string>
#include <system_error>

namespace hvl::launcher {

inline std::string ErrnoText(int error) { return std::generic_category().message(error); }

}  // namespace hvl::launcher
