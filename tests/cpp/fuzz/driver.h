// Feeds mutated inputs to the targets for a while. Use it in a build with AddressSanitizer and
// UndefinedBehaviorSanitizer, which turn bad accesses into crashes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvl::fuzz {

struct DriveOptions {
  std::uint64_t seed = 0;
  std::chrono::duration<double> time{};
  std::string_view target;  ///< empty = all, in turn
  std::uint64_t first_iteration = 0;
};

/// Returns a line per target, with how many inputs it took; empty when there is no such target. A
/// crash prints the target, the seed and the iteration on the way down.
std::string Drive(const DriveOptions& options);

}  // namespace hvl::fuzz
