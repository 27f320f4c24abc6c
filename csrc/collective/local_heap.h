// Hands out pieces of a rank's arena as memory for tensors (Session::Allocate).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>

#include "csrc/base/mutex.h"
#include "csrc/collective/local_arena.h"
#include "horovodlite/session.h"
#include "horovodlite/status.h"

namespace hvl::collective {

/// First fit over whole pages. Memory is committed when it is handed out and returned to the system
/// when its owner goes. Thread-safe. Lives as long as the backend or any buffer.
class SharedHeap final : public std::enable_shared_from_this<SharedHeap> {
 public:
  /// `arena` is shared by the backend and this heap, that is by all living buffers.
  explicit SharedHeap(std::shared_ptr<Arena> arena);
  ~SharedHeap() = default;
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  /// Zero-filled, page-aligned. NotSupported when the arena has no heap; ResourceExhausted when the
  /// system or the reserved addresses have run out.
  Result<SharedBuffer> Allocate(std::size_t bytes);

 private:
  Result<std::size_t> TakeRange(std::size_t bytes) HVL_EXCLUDES(mutex_);
  void ReturnRange(std::size_t offset, std::size_t bytes) HVL_EXCLUDES(mutex_);
  void Free(std::size_t offset, std::size_t bytes) HVL_EXCLUDES(mutex_);

  const std::shared_ptr<Arena> arena_;
  const ::pid_t process_;  ///< a forked child drops buffers without owning the memory
  Mutex mutex_;
  std::map<std::size_t, std::size_t> free_ranges_ HVL_GUARDED_BY(mutex_);  ///< bytes by offset
};

}  // namespace hvl::collective
