// For programs that measure.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "horovodlite/status.h"

namespace hvl::bench {

/// Ends the process when something fails that would make every number meaningless.
inline void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::_Exit(1);
}

}  // namespace hvl::bench
