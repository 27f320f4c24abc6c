#include "csrc/tensor/reduce.h"

#include <array>
#include <cstring>

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
