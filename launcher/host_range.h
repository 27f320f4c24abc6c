// Ranges in host names, as schedulers write them: "gpu[001-128,200]".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "horovodlite/status.h"

namespace hvl::launcher {

/// "gpu[08-10,7]" -> gpu08, gpu09, gpu10, gpu7: a range has as many digits as its first number is
/// written with. The last of several brackets counts fastest. Without brackets: the text itself.
/// Errors quote the text; so does one that stands for more than kMaxHostsOfRange names.
Result<std::vector<std::string>> ExpandHostRange(std::string_view text);

inline constexpr std::size_t kMaxHostsOfRange = 65536;

}  // namespace hvl::launcher
