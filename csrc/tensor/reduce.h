// CPU reduction kernels: every element is combined in rank order in a wide enough accumulator, so
// that the result depends on the inputs alone. Vectorised at run time for the machine (x86-64
// baseline, AVX2, AVX-512).
#pragma once

#include <cstdint>
#include <span>

#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::tensor {

struct ReduceSpec {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int rank_count = 1;  ///< divisor of kAverage

  bool operator==(const ReduceSpec&) const = default;
};

/// InvalidArgument with the cure where the reduction is not defined: bool with Sum or Average,
/// scale factors on bool, Adasum (not here yet).
Status CheckReduction(const ReduceSpec& spec);

/// Ordinary stores leave the result in this core's cache; non-temporal ones send it to memory,
/// which is several times faster for a peer on a distant core to read (docs/decisions: store
/// policy).
enum class StoreHint : std::uint8_t { kOrdinary, kNonTemporal };

/// output[i] = postscale * (op over r = 0..n-1 of prescale * inputs[r][i]), for i < count.
///
/// Accumulates float16 and bfloat16 in float32, float32 in float32, float64 in float64; integers
/// wrap (Sum, Product) and are scaled and averaged in a wider type: Average rounds towards minus
/// infinity, scale factors are applied in float64 and truncated. The order of additions is r = 0,
/// 1, ...; it does not depend on count, alignment or machine. `output` may equal any one of
/// `inputs` exactly, and must not otherwise overlap them. Requires CheckReduction(spec).ok() and
/// inputs.size() >= 1. Any thread.
void Reduce(const ReduceSpec& spec, std::span<const void* const> inputs, void* output,
            std::int64_t count, StoreHint hint = StoreHint::kOrdinary);

/// memcpy with a store hint.
void Copy(void* output, const void* input, std::size_t bytes,
          StoreHint hint = StoreHint::kOrdinary);

/// "avx512", "avx2", "baseline": what Reduce uses on this machine.
const char* KernelName();

}  // namespace hvl::tensor
