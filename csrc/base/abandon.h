// For what a forked child has inherited and must not take apart.
#pragma once

#include <new>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace hvl {

/// Never destroys `object`: its memory stays allocated until the process ends. Leak checkers are
/// told that this is meant. Never blocks, never throws.
template <typename T>
void Abandon(T object) noexcept {
  [[maybe_unused]] const auto* abandoned = new (std::nothrow) T(std::move(object));
#ifdef __SANITIZE_ADDRESS__
  __lsan_ignore_object(abandoned);
#endif
}

}  // namespace hvl
