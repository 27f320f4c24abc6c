// Numbers that a person gives to a test: how long it runs, where it begins.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "csrc/base/str.h"

namespace hvl::test {

inline std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return otherwise;
  std::uint64_t value = 0;
  const std::string_view view(text);
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size()) {
    throw std::invalid_argument(Format("{}={} is not a number", name, text));
  }
  return value;
}

}  // namespace hvl::test
