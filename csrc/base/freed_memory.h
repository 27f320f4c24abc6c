// What the C library does with memory that the program has freed.
#pragma once

#include <cstddef>

namespace hvl {

/// Lets the C library keep freed memory for what the program allocates next: `bytes`, and what it
/// may keep anyway.
///
/// Gradients that are copied to where they are reduced are freed one by one, the next ones take
/// their place. glibc gives freed memory at the end of its heap back to the system as soon as it is
/// more than a threshold, and each page of it that the next gradient gets costs a fault: for a
/// ResNet-50 some 13,000 per step, 24 ms. Source: mallopt(3), M_TRIM_THRESHOLD and
/// M_MMAP_THRESHOLD.
///
/// For the whole process; a smaller value than an earlier one changes nothing. Has no effect with
/// another C library or another allocator. Thread-safe.
void KeepFreedMemory(std::size_t bytes);

}  // namespace hvl
