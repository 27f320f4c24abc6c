// HVL_CHECK: a broken invariant is our bug. It logs the place and aborts; the world's faults are
// Status instead.
#pragma once

#include <string>

namespace hvl {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& details);
}  // namespace hvl

// HVL_CHECK(index < size, Format("index {} of {}", index, size));
#define HVL_CHECK(condition, ...)                                                     \
  do {                                                                                \
    if (!(condition)) [[unlikely]]                                                    \
      ::hvl::CheckFailed(__FILE__, __LINE__, #condition, ::std::string{__VA_ARGS__}); \
  } while (false)
