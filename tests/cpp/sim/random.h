// The one source of chance in a simulation. Own arithmetic instead of <random>'s distributions, so
// that a seed means the same with every standard library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"

namespace hvl::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// 0 .. limit - 1.
  std::uint64_t Below(std::uint64_t limit) { return engine_() % limit; }
  int Between(int low, int high) {
    return low + static_cast<int>(Below(static_cast<std::uint64_t>(high - low) + 1));
  }
  bool Percent(int chance) { return Below(100) < static_cast<std::uint64_t>(chance); }
  Duration Upto(Duration most) {
    return Duration(
        static_cast<Duration::rep>(Below(static_cast<std::uint64_t>(most.count()) + 1)));
  }
  template <typename T>
  const T& Pick(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(Below(values.size()))];
  }
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<std::size_t>(Below(i))]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace hvl::sim
