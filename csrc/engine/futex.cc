#include "csrc/engine/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace hvl::engine {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace

// FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is libstdc++'s steady clock.
// Errors need no handling: a changed word, a signal and a deadline all send the caller back to look
// at its condition.
void FutexWait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
               std::optional<TimePoint> deadline) {
  std::timespec until{};
  if (deadline) {
    const auto since_boot = deadline->time_since_epoch();
    const auto seconds = std::chrono::floor<std::chrono::seconds>(since_boot);
    until.tv_sec = seconds.count();
    until.tv_nsec = std::chrono::nanoseconds(since_boot - seconds).count();
  }
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, deadline ? &until : nullptr,
            nullptr, FUTEX_BITSET_MATCH_ANY);
}

void FutexWakeAll(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hvl::engine
