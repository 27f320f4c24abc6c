#include "csrc/engine/parking.h"

namespace hvl::engine {

void CoordinatorRest::WakeSlowly() {
  const MutexLock lock(mutex_);
  switch (mode_.exchange(kAwake)) {
    case kParked:
      FutexWakeAll(mode_);
      break;
    case kAsleep:
    case kNapping:
      mesh_->Wake();
      break;
    default:
      break;  // somebody else was faster
  }
}

// Only the coordinator thread announces a rest, and it has ended: later calls of Wake see it awake.
// One that saw the announcement before is still inside the mutex, or sees it awake there.
void CoordinatorRest::Close() { const MutexLock lock(mutex_); }

}  // namespace hvl::engine
