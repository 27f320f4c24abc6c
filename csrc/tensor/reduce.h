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
/// scale factors on bool, Adasum of anything but floating-point numbers.
Status CheckReduction(const ReduceSpec& spec);
/// The same, and InvalidArgument for Adasum, which needs whole tensors (csrc/collective/adasum.h).
Status CheckElementwise(const ReduceSpec& spec);
bool IsFloat(DType dtype);

/// Ordinary stores leave the result in this core's cache; non-temporal ones send it to memory,
/// which is several times faster for a peer on a distant core to read (docs/decisions/0017).
enum class StoreHint : std::uint8_t { kOrdinary, kNonTemporal };

/// Where a result goes.
struct Output {
  void* data;
  StoreHint hint = StoreHint::kOrdinary;
};

/// outputs[k].data[i] = postscale * (op over r = 0..n-1 of prescale * inputs[r][i]), for i < count
/// and every k.
///
/// Accumulates float16 and bfloat16 in float32, float32 in float32, float64 in float64, rounding to
/// nearest even; a NaN result is always the same quiet NaN, Min and Max propagate NaN. Integers
/// wrap (Sum, Product); their Average is exact and rounds towards zero; scale factors are
/// applied to them in float64, truncated, and saturate (NaN gives 0). For bool every nonzero byte
/// is true. The order of additions is r = 0, 1, ...; it does not depend on count, alignment,
/// machine or the calling thread's floating-point mode. Each output may equal any of `inputs`
/// exactly, and must not otherwise overlap an input or another output. No alignment is required.
/// Requires CheckElementwise(spec).ok() and at least one input and one output. Any thread.
void Reduce(const ReduceSpec& spec, std::span<const void* const> inputs,
            std::span<const Output> outputs, std::int64_t count);

/// The same with one output.
void Reduce(const ReduceSpec& spec, std::span<const void* const> inputs, void* output,
            std::int64_t count, StoreHint hint = StoreHint::kOrdinary);

/// The same over groups of inputs, as ranks of several hosts are summed: group g ends before input
/// group_ends[g], the last one with the inputs; none = one group of all. With several groups,
///
///   partial[g] = op over the group's r of prescale * inputs[r], rounded to the element type;
///   result     = postscale * (op over g = 0, 1, ... of partial[g]),
///
/// both accumulated as above; an average sums in both, and divides before `postscale`. Of integers
/// and bools the grouping changes nothing: sums and products wrap, and an average stays exact.
void Reduce(const ReduceSpec& spec, std::span<const int> group_ends,
            std::span<const void* const> inputs, std::span<const Output> outputs,
            std::int64_t count);
void Reduce(const ReduceSpec& spec, std::span<const int> group_ends,
            std::span<const void* const> inputs, void* output, std::int64_t count);

/// The two steps of that for ranks that meet group by group: what makes a partial result, and what
/// makes the result of those. Requires PartialsKeepResult.
ReduceSpec PartialSpec(const ReduceSpec& spec);
ReduceSpec FinalSpec(const ReduceSpec& spec);
/// Whether partial results in the element type are all that the second step needs. Not for an
/// average of integers, whose sum may not fit.
bool PartialsKeepResult(const ReduceSpec& spec);

/// memcpy with a store hint. `output` and `input` must not overlap; both may be null when `bytes`
/// is 0.
void Copy(void* output, const void* input, std::size_t bytes,
          StoreHint hint = StoreHint::kOrdinary);

/// `count` elements of float16, bfloat16 or float32 as float32; exact.
void Widen(DType dtype, const void* from, float* to, std::int64_t count);
/// The other way, rounding to nearest even; a NaN becomes the quiet NaN.
void Narrow(DType dtype, const float* from, void* to, std::int64_t count);

/// "avx512", "avx2", "baseline": what Reduce uses on this machine.
const char* KernelName();

}  // namespace hvl::tensor
