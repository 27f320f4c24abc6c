#include "launcher/compat_options.h"

#include <charconv>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

/// Nothing when `text` is not a number as a whole.
template <typename Number>
bool ParseWhole(const std::string& text, Number* number) {
  const char* end = text.data() + text.size();
  const auto [parsed_until, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && parsed_until == end;
}

}  // namespace

std::string CompatName(const CompatOption& option) {
  const std::size_t begin = option.names.find("--");
  return std::string(option.names.substr(begin, option.names.find(',', begin) - begin));
}

void TakeMpiOption(std::string_view name, const std::string& value, MpiChoice* choice) {
  if (name == "--mpi-args") choice->args = value;
  if (name == "--binding-args") choice->binding_args = value;
  if (name == "--tcp") choice->tcp = true;
  if (name == "--mpi-threads-disable") choice->threads_disable = true;
}

std::string NoEffect(std::string_view what, const CompatOption& option) {
  return Format("{} has no effect: {}", what, option.reason);
}

Status NotSupportedYet(std::string_view what, const CompatOption& option) {
  return {StatusCode::kNotSupported,
          Format("{} is not supported yet: {}; leave it out", what, option.reason)};
}

Status CheckCompatValue(std::string_view what, CompatValue kind, const std::string& text) {
  int count = 0;
  double fraction = 0;
  switch (kind) {
    case CompatValue::kNone:
    case CompatValue::kText:
      return Status::Ok();
    case CompatValue::kCount:
    case CompatValue::kTwoCounts:
      if (ParseWhole(text, &count) && count >= 0) return Status::Ok();
      return Invalid(Format("{} '{}' is not valid: expected an integer from 0 on", what, text));
    case CompatValue::kFraction:
      if (ParseWhole(text, &fraction) && fraction >= 0 && fraction <= 1) return Status::Ok();
      return Invalid(Format("{} '{}' is not valid: expected a number from 0 to 1", what, text));
  }
  return Status::Ok();
}

}  // namespace hvl::launcher
