#include "csrc/collective/local_heap.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "csrc/base/str.h"

namespace hvl::collective {
namespace {

// Memory, and after it one page that is never touched. Two buffers of 256 MiB would otherwise lie
// that far apart, and be mistaken for one another by the cache (local_layout.h).
std::size_t RangeBytes(std::size_t bytes) {
  return RoundUp(std::max<std::size_t>(bytes, 1), kPageBytes) + kPageBytes;
}

}  // namespace

SharedHeap::SharedHeap(std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)), process_(::getpid()) {
  const std::size_t heap_bytes = arena_->layout().heap_bytes;
  if (heap_bytes > 0) free_ranges_.emplace(0, heap_bytes);
}

Result<SharedBuffer> SharedHeap::Allocate(std::size_t bytes) {
  const std::size_t heap_bytes = arena_->layout().heap_bytes;
  if (heap_bytes == 0) {
    return Status(StatusCode::kNotSupported,
                  "this process has no address space for a shared heap; raise the limits "
                  "(ulimit -v, ulimit -f)");
  }
  if (bytes > heap_bytes) {
    return Status(
        StatusCode::kResourceExhausted,
        Format("cannot allocate {} bytes of shared memory; at most {} fit", bytes, heap_bytes));
  }
  HVL_ASSIGN_OR_RETURN(const std::size_t offset, TakeRange(RangeBytes(bytes)));
  std::byte* const begin = arena_->heap() + offset;
  const std::size_t committed = RangeBytes(bytes) - kPageBytes;
  if (Status status = arena_->Commit(begin, committed); !status.ok()) {
    ReturnRange(offset, RangeBytes(bytes));
    return status;
  }
  std::shared_ptr<void> owner(
      begin, [heap = shared_from_this(), offset, bytes](void*) { heap->Free(offset, bytes); });
  return SharedBuffer{.owner = std::move(owner), .data = begin, .bytes = bytes};
}

Result<std::size_t> SharedHeap::TakeRange(std::size_t bytes) {
  const MutexLock lock(mutex_);
  const auto fit = std::ranges::find_if(
      free_ranges_, [bytes](const auto& range) { return range.second >= bytes; });
  if (fit == free_ranges_.end()) {
    return Status(StatusCode::kResourceExhausted,
                  Format("the shared heap of {} bytes has no {} bytes in one piece left; free "
                         "buffers that are no longer needed",
                         arena_->layout().heap_bytes, bytes));
  }
  const auto [offset, available] = *fit;
  free_ranges_.erase(fit);
  if (available > bytes) free_ranges_.emplace(offset + bytes, available - bytes);
  return offset;
}

void SharedHeap::ReturnRange(std::size_t offset, std::size_t bytes) {
  const MutexLock lock(mutex_);
  auto range = free_ranges_.emplace(offset, bytes).first;
  if (const auto next = std::next(range);
      next != free_ranges_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_ranges_.erase(next);
  }
  if (range == free_ranges_.begin()) return;
  if (const auto previous = std::prev(range); previous->first + previous->second == range->first) {
    previous->second += range->second;
    free_ranges_.erase(range);
  }
}

void SharedHeap::Free(std::size_t offset, std::size_t bytes) {
  // In a forked child the memory is still the parent's.
  if (::getpid() != process_) return;
  arena_->Release(arena_->heap() + offset, RangeBytes(bytes) - kPageBytes);
  ReturnRange(offset, RangeBytes(bytes));
}

}  // namespace hvl::collective
