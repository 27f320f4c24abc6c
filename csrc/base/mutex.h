// std::mutex with Clang thread-safety annotations; g++ ignores them, `tests/dev lint` checks them.
#pragma once

#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define HVL_ATTRIBUTE(x) __attribute__((x))
#else
#define HVL_ATTRIBUTE(x)
#endif
#define HVL_GUARDED_BY(mutex) HVL_ATTRIBUTE(guarded_by(mutex))
#define HVL_REQUIRES(...) HVL_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define HVL_EXCLUDES(...) HVL_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace hvl {

class HVL_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() HVL_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() HVL_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  bool try_lock() HVL_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

/// Scoped lock. Also a BasicLockable, for CondVar.
class HVL_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HVL_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() HVL_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Wait on it with the Mutex itself, held: `cond.wait(mutex_)` in a loop over the condition.
using CondVar = std::condition_variable_any;

}  // namespace hvl
