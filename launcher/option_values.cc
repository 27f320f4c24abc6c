#include "launcher/option_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

constexpr double kMaxSeconds = 31.0 * 86400;

}  // namespace

std::string Quoted(const std::string& value) { return "'" + value + "'"; }

std::string CheckWhole(const std::string& value, int low, int high) {
  int number = 0;
  const char* end = value.data() + value.size();
  const auto [parsed_until, error] = std::from_chars(value.data(), end, number);
  if (error == std::errc() && parsed_until == end && number >= low && number <= high) return "";
  return Format("{} is not valid: expected an integer from {} to {}", Quoted(value), low, high);
}

Result<Duration> ParseSeconds(std::string_view flag, const std::string& value, double low) {
  double seconds = 0;
  const char* end = value.data() + value.size();
  const auto [parsed_until, error] = std::from_chars(value.data(), end, seconds);
  if (error != std::errc() || parsed_until != end || !std::isfinite(seconds) || seconds < low ||
      seconds > kMaxSeconds) {
    return Status(StatusCode::kInvalidArgument,
                  Format("{} {} is not valid: expected seconds from {} to {}", flag, Quoted(value),
                         low, kMaxSeconds));
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

Result<RankSet> ParseRanks(std::string_view flag, const std::string& text) {
  RankSet set;
  const Status bad(
      StatusCode::kInvalidArgument,
      Format("{} {} is not valid: expected ranks like 0 or 0,2 or 0,4-7", flag, Quoted(text)));
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    const std::size_t dash = part.find('-');
    const std::string first = part.substr(0, dash);
    const std::string last = dash == std::string::npos ? first : part.substr(dash + 1);
    if (!CheckWhole(first, 0, kMaxRanks - 1).empty() ||
        !CheckWhole(last, 0, kMaxRanks - 1).empty() || std::stoi(first) > std::stoi(last)) {
      return bad;
    }
    set.ranges.push_back({std::stoi(first), std::stoi(last)});
    at = comma + 1;
  }
  return set;
}

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

}  // namespace hvl::launcher
