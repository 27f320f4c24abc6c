// The border between run-time dispatch (reduce.cc) and the kernels, which are compiled once per
// instruction set from kernels_impl.inc. Plain data only: an inline function instantiated in a file
// built for AVX-512 could replace, at link time, the copy that an older processor runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "csrc/tensor/reduce.h"
#include "horovodlite/types.h"

namespace hvl::tensor {

struct ReduceArgs {
  DType dtype;
  ReduceOp op;
  double prescale;
  double postscale;
  int rank_count;  ///< divisor of kAverage
  const void* const* inputs;
  std::int64_t input_count;  ///< >= 1
  const Output* outputs;
  std::int64_t output_count;  ///< >= 1
  std::int64_t count;         ///< elements
};

/// The kernels of one instruction set. All sets give the same bits.
struct KernelSet {
  const char* name;
  void (*reduce)(const ReduceArgs& args);
  void (*copy_non_temporal)(void* output, const void* input, std::size_t bytes);
  void (*widen)(DType dtype, const void* from, float* to, std::int64_t count);
  void (*narrow)(DType dtype, const float* from, void* to, std::int64_t count);
};

extern const KernelSet kBaselineKernels;
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;

/// Those this machine can run, slowest first; never empty.
std::span<const KernelSet* const> SupportedKernels();

}  // namespace hvl::tensor
