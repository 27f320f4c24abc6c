#include "csrc/engine/executor.h"

#include <limits>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/engine/validate.h"

namespace hvl::engine {
namespace {

constexpr std::align_val_t kCacheLine{64};
// More than this cannot be addressed by one process, on any machine.
constexpr std::size_t kMaxBytes = std::numeric_limits<std::ptrdiff_t>::max();

const TensorArg& TensorOf(const Work& work, std::size_t index) {
  return work.operations[index]->operation.tensors[work.plan.entries[index].tensor_index];
}

GatheredTensor& GatheredOf(Work& work, std::size_t index) {
  return work.operations[index]->gathered[work.plan.entries[index].tensor_index];
}

std::size_t RowBytes(const TensorArg& tensor) {
  std::size_t bytes = DTypeBytes(tensor.dtype);
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) {
    bytes *= static_cast<std::size_t>(tensor.shape[i]);
  }
  return bytes;
}

/// Uninitialised memory; null when there is none left.
std::shared_ptr<void> AllocateResult(std::size_t bytes) {
  void* const memory = ::operator new(bytes, kCacheLine, std::nothrow);
  if (memory == nullptr) return nullptr;
  return {memory, [](void* owned) { ::operator delete(owned, kCacheLine); }};
}

}  // namespace

bool Executor::RunNext(std::size_t max_bytes) {
  std::optional<Work> work = queue_.Pop(max_bytes);
  if (!work) return false;
  const bool traced = tracer_.on();
  if (traced) {
    for (const StatePtr& state : work->operations) tracer_.Running(*state, backend_.name());
  }
  const Status status = Perform(*work);
  if (traced) {
    for (const StatePtr& state : work->operations) tracer_.Ran(*state);
  }
  if (status.ok()) {
    queue_.Finished(*work);
    End(*work, status);
  } else if (auto closed = queue_.Failed(*std::move(work), status)) {
    End(closed->first, closed->second);
  }
  return true;
}

void Executor::End(const Work& work, const Status& status) {
  for (const StatePtr& state : work.operations) {
    if (state->EndParts(1, status)) ended_.push_back(state);
  }
  registry_.Finish(ended_);
}

Status Executor::Perform(Work& work) {
  switch (work.plan.spec.kind) {
    case OpKind::kAllreduce:
      return Allreduce(work);
    case OpKind::kAllgather:
      return Allgather(work);
    case OpKind::kBroadcast:
      return Broadcast(work);
    case OpKind::kBarrier:
      return backend_.Barrier();
    default:
      return Status(StatusCode::kInternal, "a batch of unknown kind was planned");
  }
}

// Tensors without elements need nothing from the data plane; the shapes are agreed on, so every
// rank leaves the same ones out.
Status Executor::Allreduce(const Work& work) {
  reduce_pieces_.clear();
  for (std::size_t i = 0; i < work.operations.size(); ++i) {
    const TensorArg& tensor = TensorOf(work, i);
    const std::size_t bytes = TensorBytes(tensor);
    if (bytes == 0) continue;
    const auto count = static_cast<std::int64_t>(bytes / DTypeBytes(tensor.dtype));
    reduce_pieces_.push_back({tensor.input, tensor.output, count});
  }
  if (reduce_pieces_.empty()) return Status::Ok();
  Count(counters_.bytes_reduced, work.bytes);
  return backend_.Allreduce(reduce_pieces_, {.dtype = work.plan.dtype,
                                             .op = work.plan.spec.reduce_op,
                                             .prescale = work.plan.spec.prescale,
                                             .postscale = work.plan.spec.postscale,
                                             .rank_count = size_});
}

Status Executor::Broadcast(const Work& work) {
  broadcast_pieces_.clear();
  for (std::size_t i = 0; i < work.operations.size(); ++i) {
    const TensorArg& tensor = TensorOf(work, i);
    const std::size_t bytes = TensorBytes(tensor);
    if (bytes > 0) broadcast_pieces_.push_back({tensor.input, tensor.output, bytes});
  }
  if (broadcast_pieces_.empty()) return Status::Ok();
  return backend_.Broadcast(broadcast_pieces_, work.plan.spec.root_rank);
}

Status Executor::Allgather(Work& work) {
  HVL_RETURN_IF_ERROR(LayOutGathered(work));
  const auto size = static_cast<std::size_t>(size_);
  gather_pieces_.clear();
  for (std::size_t i = 0; i < work.operations.size(); ++i) {
    const GatheredTensor& result = GatheredOf(work, i);
    if (result.data == nullptr) continue;  // no rank has an element
    const std::span<const std::size_t> rank_bytes(&rank_bytes_[i * size], size);
    gather_pieces_.push_back({TensorOf(work, i).input, result.data, rank_bytes});
  }
  return gather_pieces_.empty() ? Status::Ok() : backend_.Allgather(gather_pieces_);
}

/// Fills rank_bytes_ (entry by entry, rank by rank) and gives every result its shape and memory.
/// Fails on this rank alone when memory runs out: then the session ends, because the peers have
/// begun.
Status Executor::LayOutGathered(Work& work) {
  rank_bytes_.clear();
  for (std::size_t i = 0; i < work.operations.size(); ++i) {
    const TensorArg& tensor = TensorOf(work, i);
    const std::vector<std::int64_t>& first_dims = work.plan.entries[i].first_dims;
    HVL_CHECK(first_dims.size() == static_cast<std::size_t>(size_), "first dimension of each rank");
    const std::size_t row_bytes = RowBytes(tensor);
    std::int64_t rows = 0;
    std::size_t bytes = 0;
    for (const std::int64_t rank_rows : first_dims) {
      rank_bytes_.push_back(static_cast<std::size_t>(rank_rows) * row_bytes);
      if (__builtin_add_overflow(rows, rank_rows, &rows) ||
          __builtin_add_overflow(bytes, rank_bytes_.back(), &bytes) || bytes > kMaxBytes) {
        bytes = kMaxBytes;
        break;
      }
    }
    GatheredTensor& result = GatheredOf(work, i);
    result.dtype = tensor.dtype;
    result.shape = tensor.shape;
    result.shape[0] = rows;
    result.first_dims = first_dims;
    if (bytes == 0) continue;
    const std::shared_ptr<void> memory = bytes < kMaxBytes ? AllocateResult(bytes) : nullptr;
    if (memory == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    Format("allgather '{}': no memory for its result of {} bytes",
                           work.operations[i]->operation.name, bytes));
    }
    result.owner = memory;
    result.data = memory.get();
  }
  return Status::Ok();
}

}  // namespace hvl::engine
