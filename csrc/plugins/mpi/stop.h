// The end of a session, as those see it who wait for an operation.
#pragma once

#include <atomic>

#include "csrc/base/mutex.h"
#include "horovodlite/status.h"

namespace hvl::mpi {

/// Any thread. The first cause counts.
class Stop {
 public:
  void Set(const Status& cause) {
    const MutexLock lock(mutex_);
    if (!cause_.ok()) return;
    cause_ = cause;
    set_.store(true, std::memory_order_release);
  }
  /// OK until it is set.
  Status cause() const {
    if (!set_.load(std::memory_order_acquire)) return Status::Ok();
    const MutexLock lock(mutex_);
    return cause_;
  }

 private:
  std::atomic<bool> set_{false};
  mutable Mutex mutex_;
  Status cause_ HVL_GUARDED_BY(mutex_);
};

}  // namespace hvl::mpi
