// How a caller gets out of a call that waits for peers, for example when a user presses Ctrl-C.
#pragma once

#include <chrono>
#include <functional>

namespace hvl {

/// Asked by a call that waits for peers, on the thread that called, at least once per
/// kInterruptLatency: true ends the wait, and the call returns Aborted. Empty = never.
using Interrupted = std::function<bool()>;

inline constexpr std::chrono::milliseconds kInterruptLatency{100};

}  // namespace hvl
