// Memory for the states of operations: as many as are in flight at a time come again and again.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "csrc/engine/role.h"

namespace hvl::engine {

/// Blocks of one size. A burst takes a thousand and gives them back, perhaps on another thread.
/// That is more than the allocator's own list for each thread holds, and beyond it a block costs
/// hundreds of instructions. Thread-safe, and never waits: who finds another thread at the list
/// goes to the allocator. So does a forked child whose parent was at the list at that moment.
class StatePool {
 public:
  StatePool() = default;
  ~StatePool() HVL_ATTRIBUTE(no_thread_safety_analysis);  // nobody else has it
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  /// Uninitialised memory, as operator new gives it. `bytes` is the same in every call.
  void* Take(std::size_t bytes);
  /// Of what Take gave.
  void GiveBack(void* block);

 private:
  struct Free {
    Free* next;
  };

  Role list_;
  Free* free_ HVL_GUARDED_BY(list_) = nullptr;  ///< a list in the blocks themselves
  std::size_t free_count_ HVL_GUARDED_BY(list_) = 0;
};

/// For std::allocate_shared. Each state keeps the pool, because a handle may outlive the engine.
template <typename T>
class StateAllocator {
 public:
  using value_type = T;

  explicit StateAllocator(std::shared_ptr<StatePool> pool) : pool_(std::move(pool)) {}
  template <typename Other>
  StateAllocator(const StateAllocator<Other>& other) : pool_(other.pool_) {}  // NOLINT: implicit

  T* allocate(std::size_t count) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    return static_cast<T*>(pool_->Take(count * sizeof(T)));
  }
  void deallocate(T* block, std::size_t /*count*/) { pool_->GiveBack(block); }

  friend bool operator==(const StateAllocator&, const StateAllocator&) = default;

 private:
  template <typename Other>
  friend class StateAllocator;

  std::shared_ptr<StatePool> pool_;  // shared by the engine and all states
};

}  // namespace hvl::engine
