#include "horovodlite/types.h"

#include <algorithm>

#include "csrc/base/str.h"

namespace hvl {

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
#define HVL_X(enumerator, value, name, bytes) \
  case DType::enumerator:                     \
    return name;
    HVL_DTYPES(HVL_X)
#undef HVL_X
  }
  return "unknown";
}

std::size_t DTypeBytes(DType dtype) {
  switch (dtype) {
#define HVL_X(enumerator, value, name, bytes) \
  case DType::enumerator:                     \
    return bytes;
    HVL_DTYPES(HVL_X)
#undef HVL_X
  }
  return 0;
}

std::string_view ReduceOpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAdasum:
      return "adasum";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
  }
  return "unknown";
}

std::string_view OpKindName(OpKind kind) {
  switch (kind) {
    case OpKind::kAllreduce:
      return "allreduce";
    case OpKind::kAllgather:
      return "allgather";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kReducescatter:
      return "reducescatter";
    case OpKind::kAlltoall:
      return "alltoall";
    case OpKind::kJoin:
      return "join";
    case OpKind::kProcessSet:
      return "process_set";
  }
  return "unknown";
}

std::int64_t ElementCount(const Shape& shape) {
  if (std::ranges::any_of(shape, [](std::int64_t dimension) { return dimension < 0; })) return -1;
  // A zero anywhere makes the count zero, even where the other dimensions alone would overflow.
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape) {
    if (__builtin_mul_overflow(count, dimension, &count)) return -1;
  }
  return count;
}

std::string ShapeToString(const Shape& shape) {
  std::string text = "[";
  for (std::size_t index = 0; index < shape.size(); ++index) {
    if (index > 0) text += ", ";
    text += Format("{}", shape[index]);
  }
  return text + "]";
}

}  // namespace hvl
