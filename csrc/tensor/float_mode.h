// The floating-point mode in which sums are the same whoever computes them.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hvl::tensor {

#if defined(__x86_64__)
/// While it lives, this thread rounds to nearest and keeps denormals. A thread may run with
/// denormals flushed to zero or another rounding mode (torch.set_flush_denormal sets the former).
/// The same sum would then depend on who computes it.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultFloatMode() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  static constexpr unsigned kFlags = 0x3f;      // sticky exception flags
  static constexpr unsigned kDefault = 0x1f80;  // exceptions masked, to nearest, denormals kept
  unsigned saved_;
};
#else
class DefaultFloatMode {};
#endif

}  // namespace hvl::tensor
