#include "csrc/tensor/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/tensor/float_mode.h"
#include "csrc/tensor/kernels.h"

namespace hvl::tensor {
namespace {

struct SupportedSets {
  std::array<const KernelSet*, 3> sets{};
  std::size_t count = 0;
};

SupportedSets Detect() {
  SupportedSets supported;
  supported.sets[supported.count++] = &kBaselineKernels;
#if defined(__x86_64__)
  // These builtins also ask the operating system whether it saves the wide registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    supported.sets[supported.count++] = &kAvx2Kernels;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      supported.sets[supported.count++] = &kAvx512Kernels;
    }
  }
#endif
  return supported;
}

const KernelSet& BestKernels() {
  static const KernelSet& best = *SupportedKernels().back();
  return best;
}

// Partial results of a block of elements stay in the first-level cache until they are combined.
constexpr std::size_t kPartialsBytes = std::size_t{16} << 10;
constexpr std::size_t kLeastPartialBytes = 64;  // of a group; whole elements of every type

// Reduces groups of inputs one after another, block by block: to partial results, or not at all
// where a group is a single input that its partial result would equal.
class GroupedReduction {
 public:
  GroupedReduction(const ReduceSpec& spec, std::span<const int> group_ends,
                   std::span<const void* const> inputs, std::span<const Output> outputs)
      : spec_(spec),
        partial_(PartialSpec(spec)),
        final_(FinalSpec(spec)),
        group_ends_(group_ends),
        inputs_(inputs.begin(), inputs.end()),
        outputs_(outputs.begin(), outputs.end()),
        block_bytes_(
            std::max(kPartialsBytes / group_ends.size() / kLeastPartialBytes, std::size_t{1}) *
            kLeastPartialBytes),
        memory_(std::make_unique_for_overwrite<std::byte[]>(block_bytes_ * group_ends.size())) {}

  void Run(std::int64_t count) {
    const std::size_t element_bytes = DTypeBytes(spec_.dtype);
    const auto block = static_cast<std::int64_t>(block_bytes_ / element_bytes);
    std::vector<const void*> partials(group_ends_.size());
    for (std::int64_t done = 0; done < count; done += block) {
      const std::int64_t step = std::min(block, count - done);
      int begin = 0;
      for (std::size_t group = 0; group < partials.size(); ++group) {
        partials[group] = Partial(group, begin, step);
        begin = group_ends_[group];
      }
      Reduce(final_, partials, outputs_, step);
      const std::size_t step_bytes = static_cast<std::size_t>(step) * element_bytes;
      for (const void*& input : inputs_) input = static_cast<const std::byte*>(input) + step_bytes;
      for (Output& output : outputs_)
        output.data = static_cast<std::byte*>(output.data) + step_bytes;
    }
  }

 private:
  const void* Partial(std::size_t group, int begin, std::int64_t count) {
    const auto first = static_cast<std::size_t>(begin);
    const std::size_t ranks = static_cast<std::size_t>(group_ends_[group]) - first;
    if (ranks == 1 && spec_.prescale == 1.0) return inputs_[first];
    std::byte* const partial = memory_.get() + group * block_bytes_;
    Reduce(partial_, std::span<const void* const>(inputs_).subspan(first, ranks), partial, count);
    return partial;
  }

  const ReduceSpec spec_;
  const ReduceSpec partial_;
  const ReduceSpec final_;
  const std::span<const int> group_ends_;
  std::vector<const void*> inputs_;  // what is left of them
  std::vector<Output> outputs_;
  const std::size_t block_bytes_;
  const std::unique_ptr<std::byte[]> memory_;
};

}  // namespace

std::span<const KernelSet* const> SupportedKernels() {
  static const SupportedSets supported = Detect();
  return {supported.sets.data(), supported.count};
}

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64;
}

Status CheckReduction(const ReduceSpec& spec) {
  const auto invalid = [](std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  };
  if (DTypeBytes(spec.dtype) == 0) {
    return invalid(
        Format("cannot reduce: element type number {} is unknown; use one of the types "
               "in horovodlite/types.h",
               static_cast<int>(spec.dtype)));
  }
  if (spec.rank_count < 1) {
    return invalid(Format("cannot reduce over {} ranks; expected at least 1", spec.rank_count));
  }
  if (spec.op == ReduceOp::kAdasum && !IsFloat(spec.dtype)) {
    return invalid(
        Format("reduction 'adasum' is defined for floating-point types only, not for {}; use sum, "
               "average, min, max or product, or convert the tensor to float32",
               DTypeName(spec.dtype)));
  }
  if (ReduceOpName(spec.op) == "unknown") {
    return invalid(
        Format("cannot reduce: reduction number {} is unknown; use sum, average, min, "
               "max or product",
               static_cast<int>(spec.op)));
  }
  if (spec.dtype != DType::kBool) return Status::Ok();
  if (spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAverage) {
    return invalid(
        Format("reduction '{}' is not defined for bool; use min (all), max (any) or "
               "product, or convert the tensor to uint8",
               ReduceOpName(spec.op)));
  }
  if (spec.prescale != 1.0 || spec.postscale != 1.0) {
    return invalid(
        Format("scale factors (prescale {}, postscale {}) are not defined for bool; "
               "leave both at 1",
               spec.prescale, spec.postscale));
  }
  return Status::Ok();
}

Status CheckElementwise(const ReduceSpec& spec) {
  HVL_RETURN_IF_ERROR(CheckReduction(spec));
  if (spec.op != ReduceOp::kAdasum) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          "reduction 'adasum' is not defined element by element, but for whole tensors of an "
          "allreduce; use sum, average, min, max or product"};
}

void Reduce(const ReduceSpec& spec, std::span<const void* const> inputs,
            std::span<const Output> outputs, std::int64_t count) {
  HVL_CHECK(!inputs.empty() && !outputs.empty() && count >= 0);
  if (count == 0) return;
  const DefaultFloatMode mode;
  BestKernels().reduce({.dtype = spec.dtype,
                        .op = spec.op,
                        .prescale = spec.prescale,
                        .postscale = spec.postscale,
                        .rank_count = spec.rank_count,
                        .inputs = inputs.data(),
                        .input_count = static_cast<std::int64_t>(inputs.size()),
                        .outputs = outputs.data(),
                        .output_count = static_cast<std::int64_t>(outputs.size()),
                        .count = count});
}

void Reduce(const ReduceSpec& spec, std::span<const void* const> inputs, void* output,
            std::int64_t count, StoreHint hint) {
  const Output only{.data = output, .hint = hint};
  Reduce(spec, inputs, std::span<const Output>(&only, 1), count);
}

void Reduce(const ReduceSpec& spec, std::span<const int> group_ends,
            std::span<const void* const> inputs, std::span<const Output> outputs,
            std::int64_t count) {
  if (group_ends.size() <= 1 || !IsFloat(spec.dtype)) return Reduce(spec, inputs, outputs, count);
  HVL_CHECK(group_ends.front() > 0 && group_ends.back() == static_cast<int>(inputs.size()) &&
            std::ranges::adjacent_find(group_ends, std::greater_equal<>()) == group_ends.end());
  const bool single_inputs = group_ends.size() == inputs.size();
  if (single_inputs && spec.prescale == 1.0) return Reduce(spec, inputs, outputs, count);
  GroupedReduction(spec, group_ends, inputs, outputs).Run(count);
}

void Reduce(const ReduceSpec& spec, std::span<const int> group_ends,
            std::span<const void* const> inputs, void* output, std::int64_t count) {
  const Output only{.data = output};
  Reduce(spec, group_ends, inputs, std::span<const Output>(&only, 1), count);
}

ReduceSpec PartialSpec(const ReduceSpec& spec) {
  ReduceSpec partial = spec;
  partial.postscale = 1.0;
  if (partial.op == ReduceOp::kAverage) partial.op = ReduceOp::kSum;
  return partial;
}

ReduceSpec FinalSpec(const ReduceSpec& spec) {
  ReduceSpec of_partials = spec;
  of_partials.prescale = 1.0;
  return of_partials;
}

bool PartialsKeepResult(const ReduceSpec& spec) {
  return spec.op != ReduceOp::kAverage || IsFloat(spec.dtype);
}

void Copy(void* output, const void* input, std::size_t bytes, StoreHint hint) {
  if (bytes == 0) return;
  if (hint == StoreHint::kNonTemporal) {
    BestKernels().copy_non_temporal(output, input, bytes);
  } else {
    std::memcpy(output, input, bytes);
  }
}

void Widen(DType dtype, const void* from, float* to, std::int64_t count) {
  HVL_CHECK(IsFloat(dtype) && dtype != DType::kFloat64 && count >= 0);
  const DefaultFloatMode mode;
  BestKernels().widen(dtype, from, to, count);
}

void Narrow(DType dtype, const float* from, void* to, std::int64_t count) {
  HVL_CHECK(IsFloat(dtype) && dtype != DType::kFloat64 && count >= 0);
  const DefaultFloatMode mode;
  BestKernels().narrow(dtype, from, to, count);
}

const char* KernelName() { return BestKernels().name; }

}  // namespace hvl::tensor
