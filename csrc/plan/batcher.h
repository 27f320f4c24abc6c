// The fusion rules: ready tensors in, batches out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "csrc/wire/messages.h"
#include "horovodlite/types.h"

namespace hvl::plan {

/// Tensors with equal keys may share a batch. Allreduce: element type, reduction and scales;
/// reducescatter: the same; broadcast: the root (bytes are bytes); allgather, alltoall: all. Only
/// of one process set. What has no tensors stays alone.
struct FusionKey {
  OpKind kind = OpKind::kAllreduce;
  std::uint32_t process_set = 0;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int32_t root_rank = 0;

  bool operator==(const FusionKey&) const = default;
};
FusionKey KeyOf(const wire::Signature& signature, DType dtype);

/// What fusion needs to know of a tensor.
struct TensorCost {
  FusionKey key;
  std::uint64_t bytes = 0;  ///< allgather, alltoall: of one row
};

/// Elements times bytes per element; the largest number when it would overflow.
std::uint64_t TensorBytes(const wire::TensorSignature& tensor);

/// Kinds that may be in a frozen plan: those that need no numbers of other ranks.
constexpr bool IsPlannable(OpKind kind) {
  return kind == OpKind::kAllreduce || kind == OpKind::kBroadcast || kind == OpKind::kReducescatter;
}

struct ReadyTensor {
  std::uint32_t operation = 0;  ///< whatever the caller names operations by
  std::uint32_t tensor_index = 0;

  bool operator==(const ReadyTensor&) const = default;
};

/// Batches are ordered by their first tensor, tensors of a batch by readiness. A tensor joins the
/// open batch of its key if it fits; misfits are looked past: per key, of a full-ish and an
/// emptier batch the emptier one stays open. Cost per tensor: one comparison per key in use.
class Batcher {
 public:
  explicit Batcher(std::size_t threshold_bytes) : threshold_bytes_(threshold_bytes) {}

  /// The tensors of one operation, in order, all in one go. `bytes` is what counts against the
  /// threshold, `frame_bytes` what the tensor adds to a message at most.
  void BeginOperation() { operation_first_ = operation_last_ = kNone; }
  void Add(ReadyTensor tensor, const FusionKey& key, std::uint64_t bytes, std::size_t frame_bytes);

  bool empty() const { return batches_.empty(); }
  bool has_full() const { return full_end_ > first_number_; }

  /// Everything that gathers.
  std::vector<std::vector<ReadyTensor>> TakeAll() { return Take(end_number()); }
  /// Full batches, and those that must go with them: earlier ones (no key starves another), and the
  /// rest of every operation that has begun (operations go out whole or not at all).
  std::vector<std::vector<ReadyTensor>> TakeFull();
  void Clear();

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  struct Pending {
    std::vector<ReadyTensor> tensors;
    std::uint64_t bytes = 0;
    std::size_t frame_bytes = 0;
    std::uint64_t reach = 0;  // number of the last batch that holds tensors of the same operation
  };
  struct Open {
    FusionKey key;
    std::uint64_t number = 0;
  };

  std::uint64_t end_number() const { return first_number_ + batches_.size(); }
  Pending& At(std::uint64_t number) {
    return batches_[static_cast<std::size_t>(number - first_number_)];
  }
  bool Fits(const Pending& batch, std::uint64_t bytes, std::size_t frame_bytes) const;
  bool IsFull(const Pending& batch) const;
  void MarkFull(std::uint64_t number);
  std::uint64_t NewBatch();
  std::vector<std::vector<ReadyTensor>> Take(std::uint64_t end);

  const std::size_t threshold_bytes_;
  std::deque<Pending> batches_;  // batch number first_number_ + i
  std::uint64_t first_number_ = 0;
  std::uint64_t full_end_ = 0;             // one past the last batch that is full
  std::vector<Open> open_;                 // at most one per key
  std::uint64_t operation_first_ = kNone;  // batches that the current operation lies in
  std::uint64_t operation_last_ = kNone;
};

}  // namespace hvl::plan
