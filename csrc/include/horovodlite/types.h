// The vocabulary of an operation: element types, reductions, tensors as plain memory. No framework
// types.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvl {

// enumerator, wire value, name, bytes per element
#define HVL_DTYPES(X)          \
  X(kUint8, 0, "uint8", 1)     \
  X(kInt8, 1, "int8", 1)       \
  X(kInt16, 2, "int16", 2)     \
  X(kInt32, 3, "int32", 4)     \
  X(kInt64, 4, "int64", 8)     \
  X(kFloat16, 5, "float16", 2) \
  X(kFloat32, 6, "float32", 4) \
  X(kFloat64, 7, "float64", 8) \
  X(kBool, 8, "bool", 1)       \
  X(kBfloat16, 9, "bfloat16", 2)

enum class DType : std::uint8_t {
#define HVL_X(enumerator, value, name, bytes) enumerator = value,
  HVL_DTYPES(HVL_X)
#undef HVL_X
};

/// "float32"; "unknown" for a value outside the list.
std::string_view DTypeName(DType dtype);
/// Bytes per element; 0 for a value outside the list.
constexpr std::size_t DTypeBytes(DType dtype) {
  switch (dtype) {
#define HVL_X(enumerator, value, name, bytes) \
  case DType::enumerator:                     \
    return bytes;
    HVL_DTYPES(HVL_X)
#undef HVL_X
  }
  return 0;
}

/// Values are those of Horovod's `horovod_reduce_op_*`, so that scripts may pass either.
enum class ReduceOp : std::uint8_t {
  kAverage = 0,  ///< sum divided by the number of ranks; integers round towards zero
  kSum = 1,      ///< fixed-width integers wrap around
  kAdasum = 2,   ///< Maleki et al., Scaling Distributed Training with Adaptive Summation (2020)
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};
std::string_view ReduceOpName(ReduceOp op);

enum class OpKind : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kBarrier = 3,
  kReducescatter = 4,
  kAlltoall = 5,
  kJoin = 6,        ///< this rank submits nothing more until all have joined
  kProcessSet = 7,  ///< the runtime's own: agrees on the ranks of a process set
};
/// "allreduce": also the prefix of the names of unnamed operations.
std::string_view OpKindName(OpKind kind);

/// The extents of a tensor's dimensions; empty = a scalar of one element. As a vector, but few
/// dimensions need no memory of their own: every operation has such a list for each of its tensors.
class Shape {
 public:
  using value_type = std::int64_t;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) { assign(dims.begin(), dims.end()); }
  Shape(const std::vector<std::int64_t>& dims) { assign(dims.begin(), dims.end()); }  // NOLINT
  template <typename Iterator>
  Shape(Iterator begin, Iterator end) {
    assign(begin, end);
  }

  template <typename Iterator>
  void assign(Iterator begin, Iterator end) {
    const auto count = static_cast<std::size_t>(end - begin);
    if (count > kFew) return AssignMany({std::to_address(begin), count});
    many_.clear();
    few_count_ = count;
    std::copy(begin, end, few_.begin());
  }
  void push_back(std::int64_t dim) {
    if (size() == kFew && many_.empty()) many_.assign(few_.begin(), few_.end());
    if (many_.empty()) {
      few_[few_count_++] = dim;
    } else {
      many_.push_back(dim);
    }
  }

  std::size_t size() const { return many_.empty() ? few_count_ : many_.size(); }
  bool empty() const { return size() == 0; }
  std::int64_t* data() { return many_.empty() ? few_.data() : many_.data(); }
  const std::int64_t* data() const { return many_.empty() ? few_.data() : many_.data(); }
  std::int64_t* begin() { return data(); }
  std::int64_t* end() { return data() + size(); }
  const std::int64_t* begin() const { return data(); }
  const std::int64_t* end() const { return data() + size(); }
  std::int64_t& operator[](std::size_t index) { return data()[index]; }
  std::int64_t operator[](std::size_t index) const { return data()[index]; }
  std::int64_t front() const { return data()[0]; }

  friend bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr std::size_t kFew = 4;

  /// Apart from what is copied for each tensor; where that knows how few dimensions there are, the
  /// compiler would warn of reading more.
  void AssignMany(std::span<const std::int64_t> dims);

  std::size_t few_count_ = 0;
  std::array<std::int64_t, kFew> few_{};
  std::vector<std::int64_t> many_;  ///< all of them, if they are more than a few
};

/// -1 when a dimension is negative or the count does not fit.
std::int64_t ElementCount(const Shape& shape);
std::string ShapeToString(std::span<const std::int64_t> shape);  ///< "[2, 3]"

/// Memory order of a tensor's elements, relative to its shape. Ranks must agree, because reductions
/// work on memory order. 0 = row-major; else four bits per dimension, slowest first: index + 1.
using Layout = std::uint32_t;

/// A group of ranks that operations may be limited to. Registered by all ranks of the world.
using ProcessSetId = std::uint32_t;
inline constexpr ProcessSetId kWorldSet = 0;
/// From here on: sets of two ranks, one per direction, that exist without being registered. For
/// what one rank sends to another.
inline constexpr ProcessSetId kFirstPairSet = ProcessSetId{1} << 31;
inline constexpr int kMostPairRanks = 46341;  ///< larger ranks have no such sets

struct RankPair {
  int from = 0, to = 1;
};
/// Requires different ranks from 0 to kMostPairRanks - 1.
ProcessSetId PairSet(RankPair pair);
/// Nothing when `id` is smaller than kFirstPairSet, or a rank is not smaller than `size`.
std::optional<RankPair> PairOfSet(ProcessSetId id, int size);

/// One tensor of an operation: dense host memory in some dimension order. The caller keeps `input`
/// and `output` alive and unchanged until the operation's handle is done.
struct TensorArg {
  const void* input = nullptr;  ///< ElementCount(shape) elements; may be null when there are none
  /// Same size; may equal `input`. Null where the runtime allocates: allgather, alltoall,
  /// reducescatter.
  void* output = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape;
  Layout layout = 0;
};

/// What a caller submits. Several tensors form a group: agreed on and started all or nothing.
struct Operation {
  OpKind kind = OpKind::kAllreduce;
  /// The same on every rank; empty = "<kind>.noname.<n>", counted per kind and session.
  std::string name;
  std::vector<TensorArg> tensors;           ///< barrier and join: none
  ReduceOp reduce_op = ReduceOp::kAverage;  ///< allreduce and reducescatter only
  double prescale = 1.0;   ///< of a reduction: every input is multiplied by this first
  double postscale = 1.0;  ///< of a reduction: the result is multiplied by this last
  /// Broadcast: a rank of the world, also in a process set. Allreduce and alltoall: no effect, but
  /// the ranks have to agree on it.
  int root_rank = 0;
  ProcessSetId process_set = kWorldSet;
  /// Alltoall: rows of the first tensor for each rank of the process set, in the order of ranks;
  /// empty = equally many for each.
  std::vector<std::int64_t> splits;
  /// Where in the user's program this was submitted ("train.py:12"), for messages; may be empty.
  /// Unnamed operations of different places do not belong together.
  std::string site;
};

}  // namespace hvl
