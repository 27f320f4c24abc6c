// String formatting with {fmt}; std::format is not in the compilers we support.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace hvl {

template <typename... Args>
std::string Format(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::vformat(format, fmt::make_format_args(args...));
}

}  // namespace hvl
