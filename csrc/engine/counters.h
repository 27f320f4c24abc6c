// What Session::counters() reports, apart from the operations that the registry counts.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvl::engine {

using Counter = std::atomic<std::uint64_t>;

inline void Count(Counter& counter, std::uint64_t by) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

struct Counters {
  Counter batches_dispatched{0}, bytes_reduced{0};
  Counter frames_sent{0}, frames_received{0}, bytes_sent{0};
  Counter plan_freezes{0}, plan_thaws{0};
};

}  // namespace hvl::engine
