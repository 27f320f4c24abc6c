// The oracle for reductions: one element at a time, in double precision or 128-bit integers,
// rounded after every step to what csrc/tensor/reduce.h promises. Shares no code with the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "csrc/tensor/reduce.h"

namespace hvl::test {

/// As tensor::Reduce with one output, which may equal an input.
void ReferenceReduce(const tensor::ReduceSpec& spec, std::span<const void* const> inputs,
                     void* output, std::int64_t count);

/// As tensor::Reduce over groups.
void ReferenceReduce(const tensor::ReduceSpec& spec, std::span<const int> group_ends,
                     std::span<const void* const> inputs, void* output, std::int64_t count);

/// `count` elements of the type: small numbers, and every class of bit pattern (NaN, infinities,
/// denormals, extremes).
std::vector<std::byte> RandomElements(DType dtype, std::int64_t count, std::mt19937_64& random);

/// A defined combination of type, operation and factors, for `rank_count` ranks.
tensor::ReduceSpec RandomSpec(int rank_count, std::mt19937_64& random);

/// Uniform in [lowest, highest].
std::int64_t RandomBetween(std::int64_t lowest, std::int64_t highest, std::mt19937_64& random);

}  // namespace hvl::test
