// Batches as tests look at them: tensor by tensor.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "csrc/plan/planner.h"

namespace hvl::test {

/// The entries of a batch with one tensor each.
inline std::vector<plan::BatchEntry> SingleTensors(const plan::Batch& batch) {
  std::vector<plan::BatchEntry> all;
  for (const plan::BatchEntry& entry : batch.entries) {
    const std::size_t dims = entry.first_dims.size() / entry.tensor_count;
    for (std::uint32_t i = 0; i < entry.tensor_count; ++i) {
      plan::BatchEntry single = entry;
      single.first_tensor += i;
      single.tensor_count = 1;
      const auto begin = entry.first_dims.begin() + static_cast<std::ptrdiff_t>(i * dims);
      single.first_dims.assign(begin, begin + static_cast<std::ptrdiff_t>(dims));
      all.push_back(std::move(single));
    }
  }
  return all;
}

}  // namespace hvl::test
