// Runs ranks as threads of the test process and joins them.
#pragma once

#include <chrono>
#include <cstddef>
#include <future>
#include <type_traits>
#include <vector>

namespace hvl::test {

/// Generous, because the machine may be busy; only a hang reaches it.
inline constexpr std::chrono::seconds kHangLimit{60};

/// Calls `body(rank)` on a thread of its own for every rank and returns what they returned, by
/// rank.
template <typename Body>
auto RunRanks(int size, const Body& body) {
  using Value = decltype(body(0));
  std::vector<std::future<Value>> ranks;
  ranks.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::async(std::launch::async, [rank, &body] { return body(rank); }));
  if constexpr (std::is_void_v<Value>) {
    for (auto& rank : ranks) rank.get();
  } else {
    std::vector<Value> values;
    for (auto& rank : ranks) values.push_back(rank.get());
    return values;
  }
}

}  // namespace hvl::test
