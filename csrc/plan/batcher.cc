#include "csrc/plan/batcher.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace hvl::plan {
namespace {

// A batch is closed before its part of a message grows past this, whatever the threshold.
constexpr std::size_t kMaxBatchFrameBytes = std::size_t{1} << 20;

}  // namespace

FusionKey KeyOf(const wire::Signature& signature, DType dtype) {
  FusionKey key;
  key.kind = signature.kind;
  key.process_set = signature.process_set;
  switch (signature.kind) {
    case OpKind::kAllreduce:
    case OpKind::kReducescatter:
      key.dtype = dtype;
      key.reduce_op = signature.reduce_op;
      key.prescale = signature.prescale;
      key.postscale = signature.postscale;
      break;
    case OpKind::kBroadcast:
      key.root_rank = signature.root_rank;
      break;
    case OpKind::kAllgather:
    case OpKind::kAlltoall:
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kProcessSet:
      break;
  }
  return key;
}

std::uint64_t TensorBytes(const wire::TensorSignature& tensor) {
  std::uint64_t bytes = DTypeBytes(tensor.dtype);
  for (const std::int64_t dim : tensor.shape) {
    if (dim == 0) return 0;
  }
  for (const std::int64_t dim : tensor.shape) {
    const auto factor = static_cast<std::uint64_t>(dim);
    if (bytes > std::numeric_limits<std::uint64_t>::max() / factor) {
      return std::numeric_limits<std::uint64_t>::max();
    }
    bytes *= factor;
  }
  return bytes;
}

bool Batcher::IsFull(const Pending& batch) const {
  return batch.bytes >= threshold_bytes_ || batch.frame_bytes >= kMaxBatchFrameBytes;
}

bool Batcher::Fits(const Pending& batch, std::uint64_t bytes, std::size_t frame_bytes) const {
  return bytes <= threshold_bytes_ - batch.bytes &&
         batch.frame_bytes + frame_bytes <= kMaxBatchFrameBytes;
}

void Batcher::MarkFull(std::uint64_t number) { full_end_ = std::max(full_end_, number + 1); }

std::uint64_t Batcher::NewBatch() {
  const std::uint64_t number = end_number();
  batches_.emplace_back();
  batches_.back().reach = number;
  return number;
}

void Batcher::Add(ReadyTensor tensor, const FusionKey& key, std::uint64_t bytes,
                  std::size_t frame_bytes) {
  const auto open = std::find_if(open_.begin(), open_.end(),
                                 [&key](const Open& candidate) { return candidate.key == key; });
  const bool alone = !wire::HasTensors(key.kind);
  std::uint64_t number = kNone;
  if (open != open_.end() && Fits(At(open->number), bytes, frame_bytes)) {
    number = open->number;
  } else {
    number = NewBatch();
  }
  Pending& batch = At(number);
  batch.tensors.push_back(tensor);
  batch.bytes += std::min(bytes, std::numeric_limits<std::uint64_t>::max() - batch.bytes);
  batch.frame_bytes += frame_bytes;

  // Keep at most one batch of this key open: the one with more room.
  if (alone || IsFull(batch)) {
    MarkFull(number);
    if (open != open_.end() && open->number == number) open_.erase(open);
  } else if (open == open_.end()) {
    open_.push_back({key, number});
  } else if (open->number != number) {
    if (batch.bytes < At(open->number).bytes) std::swap(open->number, number);
    MarkFull(number);
    number = end_number() - 1;  // where the tensor is, for the reach below
  }

  if (operation_first_ == kNone) operation_first_ = number;
  operation_first_ = std::min(operation_first_, number);
  operation_last_ = operation_last_ == kNone ? number : std::max(operation_last_, number);
  Pending& earliest = At(operation_first_);
  earliest.reach = std::max(earliest.reach, operation_last_);
}

std::vector<std::vector<ReadyTensor>> Batcher::TakeFull() {
  std::uint64_t end = full_end_;
  for (std::uint64_t number = first_number_; number < end; ++number) {
    end = std::max(end, At(number).reach + 1);
  }
  return Take(end);
}

std::vector<std::vector<ReadyTensor>> Batcher::Take(std::uint64_t end) {
  std::vector<std::vector<ReadyTensor>> taken;
  for (; first_number_ < end; ++first_number_) {
    taken.push_back(std::move(batches_.front().tensors));
    batches_.pop_front();
  }
  std::erase_if(open_, [end](const Open& open) { return open.number < end; });
  return taken;
}

void Batcher::Clear() {
  first_number_ = end_number();
  batches_.clear();
  open_.clear();
}

}  // namespace hvl::plan
