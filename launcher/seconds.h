// Durations as people read them.
#pragma once

#include <chrono>

#include "csrc/base/clock.h"

namespace hvl::launcher {

inline double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace hvl::launcher
