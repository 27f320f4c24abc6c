// Reading the values of options.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"
#include "horovodlite/status.h"
#include "launcher/options.h"

namespace hvl::launcher {

inline constexpr int kMaxRanks = 1048576;
inline constexpr int kMaxRestarts = 1000;

std::string Quoted(const std::string& value);

/// "'x' is not valid: expected an integer from 1 to 8", or nothing.
std::string CheckWhole(const std::string& value, int low, int high);
/// Errors name `flag`.
Result<Duration> ParseSeconds(std::string_view flag, const std::string& value, double low);
/// "0,4-7".
Result<RankSet> ParseRanks(std::string_view flag, const std::string& text);
std::vector<std::string> SplitCommas(const std::string& text);

}  // namespace hvl::launcher
