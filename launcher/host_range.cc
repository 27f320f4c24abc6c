#include "launcher/host_range.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "csrc/base/str.h"
#include "launcher/errors.h"

namespace hvl::launcher {
namespace {

// More digits than any host has, few enough for an int.
constexpr std::size_t kMaxDigits = 9;

std::optional<std::size_t> ParseNumber(std::string_view digits) {
  std::size_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto [parsed_until, error] = std::from_chars(digits.data(), end, number);
  const bool valid = error == std::errc() && parsed_until == end && digits.size() <= kMaxDigits;
  return valid ? std::optional(number) : std::nullopt;
}

/// The numbers of one pair of brackets, as they are written in names.
Result<std::vector<std::string>> Numbers(std::string_view list, std::string_view whole) {
  std::vector<std::string> numbers;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const std::string_view part = list.substr(at, comma - at);
    const std::size_t dash = std::min(part.find('-'), part.size());
    const std::string_view first_digits = part.substr(0, dash);
    const std::optional<std::size_t> first = ParseNumber(first_digits);
    const std::optional<std::size_t> last =
        dash == part.size() ? first : ParseNumber(part.substr(dash + 1));
    if (!first || !last || *first > *last) {
      return Invalid(Format("'{}': '{}' is no range of numbers: expected one like 01-16 or 1,4-7",
                            whole, part));
    }
    if (*last - *first >= kMaxHostsOfRange - numbers.size()) {
      return Invalid(Format("'{}' stands for more than {} hosts", whole, kMaxHostsOfRange));
    }
    for (std::size_t number = *first; number <= *last; ++number) {
      numbers.push_back(Format("{:0{}}", number, first_digits.size()));
    }
    at = comma + 1;
  }
  return numbers;
}

}  // namespace

Result<std::vector<std::string>> ExpandHostRange(std::string_view text) {
  std::vector<std::string> names = {""};
  const auto append = [&names](std::string_view plain) {
    for (std::string& name : names) name += plain;
  };
  std::string_view rest = text;
  for (std::size_t open = rest.find('['); open != std::string_view::npos; open = rest.find('[')) {
    const std::size_t close = rest.find(']', open);
    if (close == std::string_view::npos) {
      return Invalid(Format("'{}' has a '[' without its ']'", text));
    }
    append(rest.substr(0, open));
    HVL_ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                         Numbers(rest.substr(open + 1, close - open - 1), text));
    if (numbers.size() > kMaxHostsOfRange / names.size()) {
      return Invalid(Format("'{}' stands for more than {} hosts", text, kMaxHostsOfRange));
    }
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& number : numbers) longer.push_back(name + number);
    }
    names = std::move(longer);
    rest.remove_prefix(close + 1);
  }
  append(rest);
  return names;
}

}  // namespace hvl::launcher
