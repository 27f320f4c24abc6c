// A role is a right to use certain objects, held by one thread at a time: the coordinator role owns
// planner and links, the executor role owns the data plane. Roles are never waited for: whoever
// finds one taken leaves, because its holder looks for new work once more after giving it up.
#pragma once

#include <atomic>

#include "csrc/base/mutex.h"

namespace hvl::engine {

class HVL_ATTRIBUTE(capability("role")) Role {
 public:
  /// Never blocks. Every access is sequentially consistent, because the promise above is an
  /// argument over two variables: "publish work, then try" against "release, then look".
  bool TryTake() HVL_ATTRIBUTE(try_acquire_capability(true)) {
    return !taken_.load() && !taken_.exchange(true);
  }
  void Release() HVL_ATTRIBUTE(release_capability()) { taken_.store(false); }
  bool taken() const { return taken_.load(); }

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace hvl::engine
