#include "csrc/engine/executor.h"

#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/collective/adasum.h"
#include "csrc/engine/validate.h"

namespace hvl::engine {
namespace {

constexpr std::align_val_t kCacheLine{64};
// More than this cannot be addressed by one process, on any machine.
constexpr std::size_t kMaxBytes = std::numeric_limits<std::ptrdiff_t>::max();

/// One tensor of a batch, with its operation and what has been decided about it.
struct Part {
  Handle::State& state;
  std::size_t index;  ///< of the tensor in the operation; 0 also if that has none
  std::span<const std::int64_t> first_dims;

  const TensorArg& tensor() const { return state.operation.tensors[index]; }
  GatheredTensor& result() const { return state.gathered[index]; }
};

/// All parts of a batch without zeros.
std::vector<Part> PartsOf(const Work& work) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < work.operations.size(); ++i) {
    const plan::BatchEntry& entry = work.plan.entries[i];
    const std::span<const std::int64_t> first_dims = entry.first_dims;
    const std::size_t dims = first_dims.size() / entry.tensor_count;
    for (std::size_t k = 0; k < entry.tensor_count; ++k) {
      parts.push_back({.state = *work.operations[i],
                       .index = entry.first_tensor + k,
                       .first_dims = first_dims.subspan(k * dims, dims)});
    }
  }
  return parts;
}

/// Uninitialised memory; null when there is none left.
std::shared_ptr<void> AllocateResult(std::size_t bytes) {
  void* const memory = ::operator new(bytes, kCacheLine, std::nothrow);
  if (memory == nullptr) return nullptr;
  return {memory, [](void* owned) { ::operator delete(owned, kCacheLine); }};
}

/// The last `count` elements of a vector that does not grow beyond its capacity.
template <typename T>
std::span<const T> Last(const std::vector<T>& all, std::size_t count) {
  return std::span<const T>(all).last(count);
}

/// Gives a result its shape, which is the input's with the sum of `rank_rows` as first dimension,
/// and its memory. Fails on this rank alone when memory runs out: then the session ends, because
/// the peers have begun.
Status MakeResult(const Part& part, std::span<const std::int64_t> rank_rows) {
  const TensorArg& tensor = part.tensor();
  std::int64_t rows = 0;
  bool fits = true;
  for (const std::int64_t own : rank_rows) {
    fits = fits && !__builtin_add_overflow(rows, own, &rows);
  }
  std::size_t bytes = 0;
  fits = fits &&
         !__builtin_mul_overflow(static_cast<std::size_t>(rows), RowBytes(tensor), &bytes) &&
         bytes <= kMaxBytes;
  GatheredTensor& result = part.result();
  result.dtype = tensor.dtype;
  result.shape = tensor.shape;
  result.shape[0] = rows;
  if (fits && bytes == 0) return Status::Ok();
  const std::shared_ptr<void> memory = fits ? AllocateResult(bytes) : nullptr;
  if (memory == nullptr) {
    return Status(StatusCode::kResourceExhausted,
                  Format("{} '{}': no memory for its result of {} rows of {} bytes",
                         OpKindName(part.state.operation.kind), part.state.operation.name, rows,
                         RowBytes(tensor)));
  }
  result.owner = memory;
  result.data = memory.get();
  return Status::Ok();
}

tensor::ReduceSpec ReduceSpecOf(const Work& work, const DataPlane& plane) {
  return {.dtype = work.plan.dtype,
          .op = work.plan.spec.reduce_op,
          .prescale = work.plan.spec.prescale,
          .postscale = work.plan.spec.postscale,
          .rank_count = plane.set->size()};
}

}  // namespace

bool Executor::RunNext(std::size_t max_bytes, bool may_sleep) {
  std::optional<Work> work = queue_.Pop(max_bytes);
  if (!work) return false;
  if (status_ != nullptr) NoteStarted(*work);
  const Result<collective::GateResult> passed = PassGate(*work, may_sleep);
  if (passed.ok() && *passed == collective::GateResult::kNotYet) {
    if (auto closed = queue_.PutBack(*std::move(work))) End(closed->first, closed->second);
    return false;
  }
  // Operations of a batch that is withdrawn come again in others.
  if (passed.ok() && *passed == collective::GateResult::kWithdrawn) {
    if (status_ != nullptr) status_->NoteWithdrawn();
    return true;
  }
  if (status_ != nullptr && work->plan.gate) status_->NotePassedGate();
  const bool traced = tracer_.on();
  if (traced) {
    const std::string_view name = planes_.world().backend->name();
    for (const StatePtr& state : work->operations) {
      if (state != nullptr) tracer_.Running(*state, name);
    }
  }
  const Status status = passed.ok() ? Perform(*work) : passed.status();
  if (traced) {
    for (const StatePtr& state : work->operations) {
      if (state != nullptr) tracer_.Ran(*state);
    }
  }
  if (status.ok()) {
    if (status_ != nullptr) status_->NoteCompleted();
    queue_.Finished(*work);
    End(*work, status);
  } else if (auto closed = queue_.Failed(*std::move(work), status)) {
    End(closed->first, closed->second);
  }
  return true;
}

Result<collective::GateResult> Executor::PassGate(const Work& work, bool may_sleep) {
  const std::optional<plan::Gate>& gate = work.plan.gate;
  if (!gate) return collective::GateResult::kPassed;
  const auto mark = static_cast<std::uint32_t>(gate->hash ^ gate->hash >> 32);
  return planes_.world().backend->Gate(GateNumber(gate->plan, gate->count), mark, may_sleep);
}

void Executor::End(const Work& work, const Status& status) {
  for (std::size_t i = 0; i < work.operations.size(); ++i) {
    const StatePtr& state = work.operations[i];
    const auto count = static_cast<int>(work.plan.entries[i].tensor_count);
    if (state != nullptr && state->EndParts(count, status)) ended_.push_back(state);
  }
  if (status_ != nullptr) status_->NoteFinished(ended_.size());
  registry_.Finish(ended_);
}

/// A batch that comes back from its gate again and again is noted once.
void Executor::NoteStarted(const Work& work) {
  const plan::Batch& batch = work.plan;
  if (batch.sequence == noted_sequence_ && work.dispatched_at == noted_dispatched_at_) return;
  noted_sequence_ = batch.sequence;
  noted_dispatched_at_ = work.dispatched_at;
  // None: a rank that has joined sends zeros.
  const StatePtr first = work.operations.empty() ? nullptr : work.operations.front();
  OperationNote note{.kind = OpKindName(batch.spec.kind),
                     .name = first ? std::string_view(first->operation.name) : "",
                     .process_set = batch.spec.process_set,
                     .operations = static_cast<std::uint32_t>(batch.entries.size()),
                     .bytes = work.bytes,
                     .sequence = batch.sequence,
                     .since = work.dispatched_at};
  if (batch.gate && batch.gate->buckets > 0) {
    note.plan = batch.gate->plan;
    note.step = (batch.gate->count - 1) / batch.gate->buckets + 1;
    note.bucket = static_cast<std::uint32_t>((batch.gate->count - 1) % batch.gate->buckets + 1);
    note.buckets = static_cast<std::uint32_t>(batch.gate->buckets);
  }
  status_->NoteStarted(note, batch.gate.has_value());
}

Status Executor::Perform(Work& work) {
  const plan::BatchSpec& spec = work.plan.spec;
  if (spec.kind == OpKind::kProcessSet) return ChangeSets(work);
  HVL_ASSIGN_OR_RETURN(const DataPlane* const of_set, planes_.Of(spec.process_set));
  const DataPlane& plane = *of_set;
  switch (spec.kind) {
    case OpKind::kAllreduce:
      return Allreduce(work, plane);
    case OpKind::kAllgather:
      return Allgather(work, plane);
    case OpKind::kBroadcast:
      return Broadcast(work, plane);
    case OpKind::kBarrier:
      return plane.backend->Barrier();
    case OpKind::kReducescatter:
      return Reducescatter(work, plane);
    case OpKind::kAlltoall:
      return Alltoall(work, plane);
    case OpKind::kJoin:
      return Join(work);
    default:
      return Status(StatusCode::kInternal, "a batch of unknown kind was planned");
  }
}

// Tensors without elements need nothing from the data plane; the shapes are agreed on, so every
// rank leaves the same ones out. A rank that has joined takes part with zeros.
Status Executor::Allreduce(const Work& work, const DataPlane& plane) {
  const std::size_t element_bytes = DTypeBytes(work.plan.dtype);
  std::size_t zero_bytes = 0;
  for (const plan::BatchEntry& entry : work.plan.entries) {
    zero_bytes += static_cast<std::size_t>(entry.zeros.value_or(0)) * element_bytes;
  }
  HVL_ASSIGN_OR_RETURN(std::byte * zeros, Zeros(zero_bytes));
  reduce_pieces_.clear();
  for (std::size_t i = 0; i < work.operations.size(); ++i) {
    const plan::BatchEntry& entry = work.plan.entries[i];
    if (const std::optional<std::int64_t> count = entry.zeros) {
      if (*count > 0) reduce_pieces_.push_back({zeros, zeros, *count});
      zeros += static_cast<std::size_t>(*count) * element_bytes;
      continue;
    }
    for (const TensorArg& tensor : TensorsOf(entry, *work.operations[i])) {
      const std::int64_t count = ElementCount(tensor.shape);
      if (count > 0) reduce_pieces_.push_back({tensor.input, tensor.output, count});
    }
  }
  if (reduce_pieces_.empty()) return Status::Ok();
  Count(counters_.bytes_reduced, work.bytes);
  const tensor::ReduceSpec spec = ReduceSpecOf(work, plane);
  if (spec.op == ReduceOp::kAdasum) {
    return collective::AdasumAllreduce(*plane.backend, plane.set->position, plane.set->size(),
                                       reduce_pieces_, spec.dtype, spec.prescale, spec.postscale);
  }
  return plane.backend->Allreduce(reduce_pieces_, spec);
}

Result<std::byte*> Executor::Zeros(std::size_t bytes) {
  if (bytes > zeros_size_) {
    zeros_.reset(new (std::nothrow) std::byte[bytes]);
    zeros_size_ = zeros_ == nullptr ? 0 : bytes;
    if (zeros_ == nullptr) {
      return Status(StatusCode::kResourceExhausted,
                    Format("no memory for the {} bytes of zeros that this rank contributes after "
                           "it has joined",
                           bytes));
    }
  }
  if (bytes > 0) std::memset(zeros_.get(), 0, bytes);
  return zeros_.get();
}

Status Executor::Broadcast(const Work& work, const DataPlane& plane) {
  broadcast_pieces_.clear();
  for (std::size_t i = 0; i < work.operations.size(); ++i) {
    for (const TensorArg& tensor : TensorsOf(work.plan.entries[i], *work.operations[i])) {
      const std::size_t bytes = TensorBytes(tensor);
      if (bytes > 0) broadcast_pieces_.push_back({tensor.input, tensor.output, bytes});
    }
  }
  if (broadcast_pieces_.empty()) return Status::Ok();
  const int root = plane.set->PositionOf(work.plan.spec.root_rank);
  HVL_CHECK(root >= 0, "a broadcast was planned whose root is no member of its process set");
  return plane.backend->Broadcast(broadcast_pieces_, root);
}

Status Executor::Allgather(Work& work, const DataPlane& plane) {
  const auto size = static_cast<std::size_t>(plane.set->size());
  const std::vector<Part> parts = PartsOf(work);
  part_bytes_.clear();
  part_bytes_.reserve(parts.size() * size);  // the pieces refer to it
  gather_pieces_.clear();
  for (const Part& part : parts) {
    HVL_CHECK(part.first_dims.size() == size, "first dimension of each rank");
    HVL_RETURN_IF_ERROR(MakeResult(part, part.first_dims));
    GatheredTensor& result = part.result();
    result.first_dims.assign(part.first_dims.begin(), part.first_dims.end());
    if (result.data == nullptr) continue;  // no rank has an element
    const std::size_t row_bytes = RowBytes(part.tensor());
    for (const std::int64_t rows : part.first_dims) {
      part_bytes_.push_back(static_cast<std::size_t>(rows) * row_bytes);
    }
    gather_pieces_.push_back({part.tensor().input, result.data, Last(part_bytes_, size)});
  }
  return gather_pieces_.empty() ? Status::Ok() : plane.backend->Allgather(gather_pieces_);
}

Status Executor::Reducescatter(Work& work, const DataPlane& plane) {
  const int ranks = plane.set->size();
  const auto size = static_cast<std::size_t>(ranks);
  const std::vector<Part> parts = PartsOf(work);
  part_elements_.clear();
  part_elements_.reserve(parts.size() * size);  // the pieces refer to it
  scatter_pieces_.clear();
  for (const Part& part : parts) {
    const TensorArg& tensor = part.tensor();
    const std::int64_t rows = tensor.shape[0];
    const std::int64_t own = ScatteredRows(rows, plane.set->position, ranks);
    HVL_RETURN_IF_ERROR(MakeResult(part, {&own, 1}));
    if (TensorBytes(tensor) == 0) continue;
    const auto row_elements =
        static_cast<std::int64_t>(RowBytes(tensor) / DTypeBytes(tensor.dtype));
    for (int position = 0; position < ranks; ++position) {
      part_elements_.push_back(ScatteredRows(rows, position, ranks) * row_elements);
    }
    scatter_pieces_.push_back({tensor.input, part.result().data, Last(part_elements_, size)});
  }
  if (scatter_pieces_.empty()) return Status::Ok();
  Count(counters_.bytes_reduced, work.bytes);
  return plane.backend->Reducescatter(scatter_pieces_, ReduceSpecOf(work, plane));
}

/// The decision has the rows from every rank to every other one.
Status Executor::Alltoall(Work& work, const DataPlane& plane) {
  const auto size = static_cast<std::size_t>(plane.set->size());
  const auto position = static_cast<std::size_t>(plane.set->position);
  const std::vector<Part> parts = PartsOf(work);
  part_bytes_.clear();
  part_bytes_.reserve(parts.size() * size * size);  // the pieces refer to it
  exchange_pieces_.clear();
  for (const Part& part : parts) {
    const std::span<const std::int64_t> rows = part.first_dims;
    HVL_CHECK(rows.size() == size * size, "rows from each rank to each rank");
    std::vector<std::int64_t> received(size);
    for (std::size_t from = 0; from < size; ++from) received[from] = rows[from * size + position];
    HVL_RETURN_IF_ERROR(MakeResult(part, received));
    GatheredTensor& result = part.result();
    result.first_dims = std::move(received);
    const std::size_t row_bytes = RowBytes(part.tensor());
    std::size_t sum = 0;
    for (const std::int64_t count : rows) {
      part_bytes_.push_back(static_cast<std::size_t>(count) * row_bytes);
      sum |= part_bytes_.back();
    }
    if (sum == 0) continue;  // nobody has anything for anybody
    exchange_pieces_.push_back({part.tensor().input, result.data, Last(part_bytes_, size * size)});
  }
  return exchange_pieces_.empty() ? Status::Ok() : plane.backend->Alltoall(exchange_pieces_);
}

/// All ranks have joined: there is nothing to do but to tell who was the last. Nothing of the world
/// is in flight on any rank, so what follows pairs from the same count.
Status Executor::Join(Work& work) {
  registry_.ForgetUnnamed(kWorldSet);
  for (const Part& part : PartsOf(work)) {
    part.result().shape = {0};
    part.result().first_dims.assign(part.first_dims.begin(), part.first_dims.end());
  }
  return Status::Ok();
}

/// From the next batch on, the process set is there, or is not.
Status Executor::ChangeSets(const Work& work) {
  const ProcessSetId id = work.plan.spec.process_set;
  const std::vector<std::int32_t>& ranks = work.plan.spec.ranks;
  if (!ranks.empty()) return planes_.Add(sets_.Add(id, {ranks.begin(), ranks.end()}));
  sets_.Remove(id);
  planes_.Remove(id);
  registry_.ForgetSet(id);
  return Status::Ok();
}

}  // namespace hvl::engine
