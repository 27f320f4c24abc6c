#include "csrc/engine/state_pool.h"

#include <new>
#include <utility>

namespace hvl::engine {
namespace {

// Of about 600 bytes each: some megabytes. Few programs have more in flight at a time.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kMostKept = 0;  // the sanitizer would take what is kept for living
#else
constexpr std::size_t kMostKept = 4096;
#endif

}  // namespace

StatePool::~StatePool() {
  while (free_ != nullptr) ::operator delete(std::exchange(free_, free_->next));
}

void* StatePool::Take(std::size_t bytes) {
  void* block = nullptr;
  if (list_.TryTake()) {
    block = free_;
    if (free_ != nullptr) {
      free_ = free_->next;
      --free_count_;
    }
    list_.Release();
  }
  return block != nullptr ? block : ::operator new(bytes);
}

void StatePool::GiveBack(void* block) {
  if (list_.TryTake()) {
    if (free_count_ < kMostKept) {
      free_ = ::new (std::exchange(block, nullptr)) Free{free_};
      ++free_count_;
    }
    list_.Release();
  }
  ::operator delete(block);
}

}  // namespace hvl::engine
