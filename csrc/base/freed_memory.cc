#include "csrc/base/freed_memory.h"

#include <algorithm>
#include <limits>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "csrc/base/mutex.h"

namespace hvl {

void KeepFreedMemory([[maybe_unused]] std::size_t bytes) {
#if defined(__GLIBC__)
  // The largest that glibc takes. Its own threshold grows up to that by and by, but no longer when
  // the other one has been set.
  constexpr int kMmapThreshold = 32 << 20;
  constexpr std::size_t kAnyway = std::size_t{2} * kMmapThreshold;
  static Mutex mutex;
  static int kept HVL_GUARDED_BY(mutex) = 0;
  const MutexLock lock(mutex);
  constexpr std::size_t kMost = std::numeric_limits<int>::max();
  const int wanted = static_cast<int>(std::min(bytes, kMost - kAnyway) + kAnyway);
  if (wanted <= kept) return;
  if (kept == 0) ::mallopt(M_MMAP_THRESHOLD, kMmapThreshold);  // NOLINT(concurrency-mt-unsafe)
  ::mallopt(M_TRIM_THRESHOLD, wanted);  // NOLINT(concurrency-mt-unsafe): under a lock
  kept = wanted;
#endif
}

}  // namespace hvl
