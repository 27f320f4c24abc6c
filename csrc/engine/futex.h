// A word to sleep on, with a deadline (std::atomic::wait has none).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "csrc/base/clock.h"

namespace hvl::engine {

/// Sleeps while `word` holds `expected`, at most until `deadline` of the steady clock (none = for
/// ever). May return early for no reason.
void FutexWait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
               std::optional<TimePoint> deadline);
void FutexWakeAll(const std::atomic<std::uint32_t>& word);

}  // namespace hvl::engine
