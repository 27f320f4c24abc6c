#include "horovodlite/types.h"

#include <algorithm>
#include <cmath>

#include "csrc/base/check.h"
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

namespace {

/// Of a shape without elements, or of no shape at all. Apart from the count of others, which is
/// taken several times for each tensor of each step.
std::int64_t UnusualCount(const Shape& shape) {
  const auto is_negative = [](std::int64_t dimension) { return dimension < 0; };
  if (std::any_of(shape.begin(), shape.end(), is_negative)) return -1;
  // A zero anywhere makes the count zero, even where the other dimensions alone would overflow.
  return std::find(shape.begin(), shape.end(), 0) != shape.end() ? 0 : -1;
}

}  // namespace

void Shape::AssignMany(std::span<const std::int64_t> dims) {
  many_.assign(dims.begin(), dims.end());
  few_count_ = 0;
}

std::int64_t ElementCount(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension <= 0 || __builtin_mul_overflow(count, dimension, &count)) {
      return UnusualCount(shape);
    }
  }
  return count;
}

std::string ShapeToString(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t index = 0; index < shape.size(); ++index) {
    if (index > 0) text += ", ";
    text += Format("{}", shape[index]);
  }
  return text + "]";
}

// Pairs of ranks in the order (0,1), (0,2), (1,2), (0,3), ...: the pair a < b comes after the
// b * (b - 1) / 2 pairs of smaller ranks. Each has two numbers, one per direction.
ProcessSetId PairSet(RankPair pair) {
  const auto [low, high] = std::minmax(pair.from, pair.to);
  HVL_CHECK(low >= 0 && low < high && high < kMostPairRanks, "not a pair of ranks");
  const auto below = static_cast<ProcessSetId>(high);
  const ProcessSetId index = below * (below - 1) / 2 + static_cast<ProcessSetId>(low);
  return kFirstPairSet + 2 * index + (pair.from > pair.to ? 1 : 0);
}

std::optional<RankPair> PairOfSet(ProcessSetId id, int size) {
  if (id < kFirstPairSet) return std::nullopt;
  const std::int64_t index = (id - kFirstPairSet) / 2;
  auto high = static_cast<std::int64_t>((1 + std::sqrt(1 + 8 * static_cast<double>(index))) / 2);
  if (high * (high - 1) / 2 > index) --high;  // the root was rounded up
  const std::int64_t low = index - high * (high - 1) / 2;
  if (high >= size) return std::nullopt;
  const RankPair pair{static_cast<int>(low), static_cast<int>(high)};
  return id % 2 == 0 ? pair : RankPair{pair.to, pair.from};
}

}  // namespace hvl
