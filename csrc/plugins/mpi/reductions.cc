#include "csrc/plugins/mpi/reductions.h"

#include <array>
#include <map>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"

namespace hvl::mpi {
namespace {

/// inout[i] = in[i] (op) inout[i], with our kernels: the form that MPI wants.
template <DType kDType, ReduceOp kOp>
void Combine(void* in, void* inout, int* count,  // NOLINT(readability-non-const-parameter)
             MPI_Datatype* /*type*/) {
  const std::array<const void*, 2> inputs = {in, inout};
  tensor::Reduce({.dtype = kDType, .op = kOp, .rank_count = 1}, inputs, inout, *count);
}

template <DType kDType>
MPI_User_function* CombinerOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return &Combine<kDType, ReduceOp::kSum>;
    case ReduceOp::kMin:
      return &Combine<kDType, ReduceOp::kMin>;
    case ReduceOp::kMax:
      return &Combine<kDType, ReduceOp::kMax>;
    case ReduceOp::kProduct:
      return &Combine<kDType, ReduceOp::kProduct>;
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      break;
  }
  return nullptr;
}

MPI_User_function* CombinerOf(DType dtype, ReduceOp op) {
  switch (dtype) {
#define HVL_X(enumerator, value, name, bytes) \
  case DType::enumerator:                     \
    return CombinerOf<DType::enumerator>(op);
    HVL_DTYPES(HVL_X)
#undef HVL_X
  }
  return nullptr;
}

/// Made when first needed and kept: there are few, and each session needs the same.
MPI_Op OurOperation(DType dtype, ReduceOp op) {
  static std::map<std::pair<DType, ReduceOp>, MPI_Op> made;
  const auto [place, is_new] = made.try_emplace({dtype, op}, MPI_OP_NULL);
  if (is_new) {
    MPI_User_function* const combine = CombinerOf(dtype, op);
    HVL_CHECK(combine != nullptr, Format("no {} of {}", ReduceOpName(op), DTypeName(dtype)));
    // The smaller of 0 and -0 is the first one: a matter of order.
    const bool selects = op == ReduceOp::kMin || op == ReduceOp::kMax;
    const int commutes = selects ? 0 : 1;
    const int code = MPI_Op_create(combine, commutes, &place->second);
    HVL_CHECK(code == MPI_SUCCESS, Format("MPI_Op_create: {}", code));
  }
  return place->second;
}

bool IsInteger(DType dtype) { return dtype != DType::kBool && !tensor::IsFloat(dtype); }

// Signed integers as unsigned ones where that gives the same bits: they may wrap around.
MPI_Datatype TypeFor(DType dtype, bool is_signed) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kBool:
      return MPI_UINT8_T;
    case DType::kInt8:
      return is_signed ? MPI_INT8_T : MPI_UINT8_T;
    case DType::kInt16:
      return is_signed ? MPI_INT16_T : MPI_UINT16_T;
    case DType::kInt32:
      return is_signed ? MPI_INT32_T : MPI_UINT32_T;
    case DType::kInt64:
      return is_signed ? MPI_INT64_T : MPI_UINT64_T;
    case DType::kFloat16:
    case DType::kBfloat16:
      return MPI_UINT16_T;  // for our operations, which know better
    case DType::kFloat32:
      return MPI_FLOAT;
    case DType::kFloat64:
      return MPI_DOUBLE;
  }
  return MPI_DATATYPE_NULL;
}

}  // namespace

bool PartialSumsFit(const tensor::ReduceSpec& spec) {
  if (spec.prescale != 1.0) return false;
  return tensor::IsFloat(spec.dtype) || (spec.postscale == 1.0 && spec.op != ReduceOp::kAverage);
}

// MPI_MIN and MPI_MAX leave open what becomes of a NaN; MPI has no 16-bit floating-point numbers,
// and bytes that are truth values mean something else to it. Where a sum of integers overflows, all
// is open, and Open MPI 4.1 saturates those of 8 and 16 bits; wider ones wrap everywhere.
Reduction ReductionFor(const tensor::ReduceSpec& spec) {
  const ReduceOp op = spec.op == ReduceOp::kAverage ? ReduceOp::kSum : spec.op;
  const bool adds = op == ReduceOp::kSum || op == ReduceOp::kProduct;
  if (adds && DTypeBytes(spec.dtype) >= 4) {
    return {TypeFor(spec.dtype, false), op == ReduceOp::kSum ? MPI_SUM : MPI_PROD};
  }
  if (!adds && IsInteger(spec.dtype)) {
    return {TypeFor(spec.dtype, true), op == ReduceOp::kMin ? MPI_MIN : MPI_MAX};
  }
  return {TypeFor(spec.dtype, false), OurOperation(spec.dtype, op)};
}

}  // namespace hvl::mpi
