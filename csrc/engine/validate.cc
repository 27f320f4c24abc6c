#include "csrc/engine/validate.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "csrc/base/str.h"
#include "csrc/tensor/reduce.h"
#include "csrc/wire/messages.h"

namespace hvl::engine {
namespace {

/// Nothing when they do not fit.
std::optional<std::int64_t> CheckedBytes(const TensorArg& tensor) {
  const std::int64_t count = ElementCount(tensor.shape);
  auto bytes = static_cast<std::int64_t>(DTypeBytes(tensor.dtype));
  if (count < 0 || __builtin_mul_overflow(bytes, count, &bytes)) return std::nullopt;
  return bytes;
}

bool PartlyOverlap(const void* input, const void* output, std::size_t bytes) {
  const auto a = reinterpret_cast<std::uintptr_t>(input);
  const auto b = reinterpret_cast<std::uintptr_t>(output);
  return a != b && a < b + bytes && b < a + bytes;
}

/// What is wrong, without the name of the operation; empty = nothing.
std::string TensorShapeFault(const TensorArg& tensor) {
  if (DTypeBytes(tensor.dtype) == 0) {
    return Format("element type {} is not known", static_cast<int>(tensor.dtype));
  }
  for (const std::int64_t dimension : tensor.shape) {
    if (dimension < 0) {
      return Format("shape {} has a negative dimension", ShapeToString(tensor.shape));
    }
  }
  if (!CheckedBytes(tensor)) {
    return Format("shape {} of {} is more than any memory holds", ShapeToString(tensor.shape),
                  DTypeName(tensor.dtype));
  }
  return {};
}

/// What is done with the memory of an operation's tensors on one rank.
struct MemoryUse {
  bool reads_input, writes_output;
};

MemoryUse MemoryUseOf(const Operation& operation, int rank) {
  return {.reads_input = operation.kind != OpKind::kBroadcast || operation.root_rank == rank,
          .writes_output = !AllocatesResult(operation.kind)};
}

bool IsSound(MemoryUse use, const TensorArg& tensor) {
  const bool in_place = tensor.input == tensor.output && tensor.input != nullptr;
  if (in_place && use.writes_output) return true;  // most are, and need no count of bytes
  if (!use.writes_output && tensor.output != nullptr) return false;
  const std::size_t bytes = TensorBytes(tensor);
  if (bytes == 0) return true;
  if (use.reads_input && tensor.input == nullptr) return false;
  if (!use.writes_output) return true;
  if (tensor.output == nullptr) return false;
  return !use.reads_input || !PartlyOverlap(tensor.input, tensor.output, bytes);
}

std::string TensorMemoryFault(const Operation& operation, const TensorArg& tensor, int rank) {
  const MemoryUse use = MemoryUseOf(operation, rank);
  if (IsSound(use, tensor)) return {};
  if (!use.writes_output && tensor.output != nullptr) {
    return Format("the runtime allocates the result of {}; leave `output` null",
                  OpKindName(operation.kind));
  }
  if (use.reads_input && tensor.input == nullptr) {
    return Format("`input` is null, but shape {} has elements", ShapeToString(tensor.shape));
  }
  if (tensor.output == nullptr) {
    return Format("`output` is null, but shape {} has elements", ShapeToString(tensor.shape));
  }
  return "`input` and `output` overlap without being equal; use the same or separate memory";
}

bool IsReduction(OpKind kind) {
  return kind == OpKind::kAllreduce || kind == OpKind::kReducescatter;
}

/// A reduction or an alltoall may serve one rank only; the ranks agree on which.
bool HasRoot(OpKind kind) {
  return kind == OpKind::kBroadcast || kind == OpKind::kAllreduce || kind == OpKind::kAlltoall;
}

/// Each rank announces its own first dimensions.
bool FirstDimensionsDiffer(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
}

std::string ReductionFault(const Operation& operation, DType dtype, int ranks) {
  if (operation.kind == OpKind::kReducescatter && operation.reduce_op == ReduceOp::kAdasum) {
    return "Adasum is defined for allreduce only";
  }
  const tensor::ReduceSpec spec{.dtype = dtype,
                                .op = operation.reduce_op,
                                .prescale = operation.prescale,
                                .postscale = operation.postscale,
                                .rank_count = ranks};
  return tensor::CheckReduction(spec).message();
}

std::string ScalarFault(OpKind kind) {
  switch (kind) {
    case OpKind::kAllgather:
      return "a scalar has no first dimension to gather along; reshape it to [1]";
    case OpKind::kReducescatter:
      return "Reducescatter does not support scalar inputs; reshape it to [1]";
    case OpKind::kAlltoall:
      return "a scalar has no first dimension to divide among the ranks; reshape it to [1]";
    default:
      return {};
  }
}

/// Horovod's sentences come first: scripts and tests look for them.
std::string SplitsFault(const Operation& operation, const ProcessSet& set) {
  const std::int64_t rows = operation.tensors[0].shape[0];
  const std::vector<std::int64_t>& splits = operation.splits;
  if (splits.empty()) {
    if (rows % set.size() == 0) return {};
    return Format(
        "splits not provided, but first dimension of tensor is not an even multiple of the number "
        "of workers. It is {}, and there are {} ranks; pass splits",
        rows, set.size());
  }
  if (splits.size() != static_cast<std::size_t>(set.size())) {
    return Format(
        "Number of entries in splits does not equal number of workers. There are {} and "
        "{}",
        splits.size(), set.size());
  }
  std::int64_t left = rows;
  for (const std::int64_t split : splits) {
    if (split < 0) return Format("splits must not be negative; there is a {}", split);
    if (split > left) {
      return Format(
          "Sum of splits entries is greater than the first dimension of tensor. That is "
          "{}, and the splits are {}",
          rows, ShapeToString(splits));
    }
    left -= split;
  }
  return {};
}

std::string TensorFault(const Operation& operation, const TensorArg& tensor, int rank, int ranks) {
  if (std::string fault = TensorShapeFault(tensor); !fault.empty()) return fault;
  if (tensor.shape.empty()) {
    if (std::string fault = ScalarFault(operation.kind); !fault.empty()) return fault;
  }
  if (IsReduction(operation.kind)) {
    std::string fault = ReductionFault(operation, tensor.dtype, ranks);
    if (!fault.empty()) return fault;
  }
  return TensorMemoryFault(operation, tensor, rank);
}

std::string OperationFault(const Operation& operation, const ProcessSet& set, int rank) {
  if (operation.kind > OpKind::kJoin) {
    return Format("operation kind {} is not known", static_cast<int>(operation.kind));
  }
  if (!set.included()) return Format("rank {} is not a member of {}", rank, set.ToString());
  if (operation.kind == OpKind::kBroadcast && set.PositionOf(operation.root_rank) < 0) {
    if (set.id != kWorldSet) {
      return Format("received invalid root rank {} for {}: it is not a member", operation.root_rank,
                    set.ToString());
    }
    return Format("root rank {} is not a rank of this world of {} (0 to {})", operation.root_rank,
                  set.size(), set.size() - 1);
  }
  if (operation.kind == OpKind::kJoin && set.id != kWorldSet) {
    return "join concerns the whole world; leave the process set out";
  }
  if (operation.kind == OpKind::kAlltoall && operation.tensors.size() > 1) {
    return Format("an alltoall has one tensor, not {}", operation.tensors.size());
  }
  return {};
}

}  // namespace

bool AllocatesResult(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall || kind == OpKind::kReducescatter;
}

std::size_t TensorBytes(const TensorArg& tensor) {
  return static_cast<std::size_t>(CheckedBytes(tensor).value_or(0));
}

std::size_t RowBytes(const TensorArg& tensor) {
  std::size_t bytes = DTypeBytes(tensor.dtype);
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) {
    bytes *= static_cast<std::size_t>(tensor.shape[i]);
  }
  return bytes;
}

std::int64_t ScatteredRows(std::int64_t rows, int position, int size) {
  return rows / size + (position < rows % size ? 1 : 0);
}

Status CheckOperation(const Operation& operation, const ProcessSet& set, int rank) {
  std::string fault = OperationFault(operation, set, rank);
  for (std::size_t i = 0; fault.empty() && i < operation.tensors.size(); ++i) {
    fault = TensorFault(operation, operation.tensors[i], rank, set.size());
    if (!fault.empty() && operation.tensors.size() > 1) fault = Format("tensor {}: {}", i, fault);
  }
  if (fault.empty() && operation.kind == OpKind::kAlltoall && !operation.tensors.empty()) {
    fault = SplitsFault(operation, set);
  }
  if (fault.empty()) return Status::Ok();
  const std::string who = operation.name.empty()
                              ? Format("unnamed {}", OpKindName(operation.kind))
                              : Format("{} '{}'", OpKindName(operation.kind), operation.name);
  return Status(StatusCode::kInvalidArgument, Format("{}: {}", who, fault));
}

bool HasSoundMemory(const Operation& operation, int rank) {
  const MemoryUse use = MemoryUseOf(operation, rank);
  return std::all_of(operation.tensors.begin(), operation.tensors.end(),
                     [use](const TensorArg& tensor) { return IsSound(use, tensor); });
}

// Compares what SignatureOf takes from the operation.
bool IsLike(const Operation& operation, const wire::Signature& signature) {
  if (operation.kind != signature.kind || operation.process_set != signature.process_set ||
      operation.tensors.size() != signature.tensors.size() ||
      FirstDimensionsDiffer(operation.kind)) {
    return false;
  }
  if (IsReduction(operation.kind) &&
      (operation.reduce_op != signature.reduce_op || operation.prescale != signature.prescale ||
       operation.postscale != signature.postscale)) {
    return false;
  }
  if (HasRoot(operation.kind) && operation.root_rank != signature.root_rank) return false;
  for (std::size_t i = 0; i < operation.tensors.size(); ++i) {
    const TensorArg& tensor = operation.tensors[i];
    const wire::TensorSignature& known = signature.tensors[i];
    if (tensor.dtype != known.dtype || tensor.layout != known.layout ||
        tensor.shape != known.shape) {
      return false;
    }
  }
  return true;
}

wire::Signature SignatureOf(const Operation& operation) {
  wire::Signature signature;
  signature.kind = operation.kind;
  signature.process_set = operation.process_set;
  // An unnamed operation gets its name when it is admitted; until then errors call it by its kind.
  signature.name = operation.name.empty() ? OpKindName(operation.kind) : operation.name;
  if (IsReduction(operation.kind)) {
    signature.reduce_op = operation.reduce_op;
    signature.prescale = operation.prescale;
    signature.postscale = operation.postscale;
  }
  if (HasRoot(operation.kind)) signature.root_rank = operation.root_rank;
  signature.tensors.reserve(operation.tensors.size());
  for (const TensorArg& tensor : operation.tensors) {
    const int skipped = FirstDimensionsDiffer(operation.kind) ? 1 : 0;
    const Shape shape(tensor.shape.begin() + skipped, tensor.shape.end());
    signature.tensors.push_back({tensor.dtype, tensor.layout, shape});
  }
  return signature;
}

std::vector<std::int64_t> FirstDimensions(const Operation& operation, const ProcessSet& set) {
  std::vector<std::int64_t> first_dims;
  if (operation.kind == OpKind::kAllgather) {
    for (const TensorArg& tensor : operation.tensors) first_dims.push_back(tensor.shape.front());
  }
  if (operation.kind == OpKind::kAlltoall && !operation.tensors.empty()) {
    const std::int64_t equal_rows = operation.tensors[0].shape.front() / set.size();
    first_dims = operation.splits;
    first_dims.resize(static_cast<std::size_t>(set.size()), equal_rows);
  }
  return first_dims;
}

}  // namespace hvl::engine
