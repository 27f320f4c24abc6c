#include "csrc/engine/validate.h"

#include <cstdint>
#include <optional>
#include <string>

#include "csrc/base/str.h"
#include "csrc/tensor/reduce.h"
#include "csrc/wire/messages.h"

namespace hvl::engine {
namespace {

/// The product, or nothing when it does not fit.
std::optional<std::int64_t> CheckedBytes(const TensorArg& tensor) {
  auto bytes = static_cast<std::int64_t>(DTypeBytes(tensor.dtype));
  for (const std::int64_t dimension : tensor.shape) {
    if (dimension == 0) return 0;
  }
  for (const std::int64_t dimension : tensor.shape) {
    if (__builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
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

std::string TensorMemoryFault(const Operation& operation, const TensorArg& tensor, int rank) {
  const bool reads_input = operation.kind != OpKind::kBroadcast || operation.root_rank == rank;
  const bool writes_output = operation.kind != OpKind::kAllgather;
  const std::size_t bytes = TensorBytes(tensor);
  if (!writes_output && tensor.output != nullptr) {
    return "the runtime allocates the result of an allgather; leave `output` null";
  }
  if (bytes == 0) return {};
  if (reads_input && tensor.input == nullptr) {
    return Format("`input` is null, but shape {} has elements", ShapeToString(tensor.shape));
  }
  if (writes_output && tensor.output == nullptr) {
    return Format("`output` is null, but shape {} has elements", ShapeToString(tensor.shape));
  }
  if (reads_input && writes_output && PartlyOverlap(tensor.input, tensor.output, bytes)) {
    return "`input` and `output` overlap without being equal; use the same or separate memory";
  }
  return {};
}

std::string TensorFault(const Operation& operation, const TensorArg& tensor, int rank, int size) {
  if (std::string fault = TensorShapeFault(tensor); !fault.empty()) return fault;
  if (operation.kind == OpKind::kAllgather && tensor.shape.empty()) {
    return "a scalar has no first dimension to gather along; reshape it to [1]";
  }
  if (operation.kind == OpKind::kAllreduce) {
    const tensor::ReduceSpec spec{.dtype = tensor.dtype,
                                  .op = operation.reduce_op,
                                  .prescale = operation.prescale,
                                  .postscale = operation.postscale,
                                  .rank_count = size};
    if (Status status = tensor::CheckReduction(spec); !status.ok()) return status.message();
  }
  return TensorMemoryFault(operation, tensor, rank);
}

std::string OperationFault(const Operation& operation, int size) {
  if (operation.kind > OpKind::kBarrier) {
    return Format("operation kind {} is not known", static_cast<int>(operation.kind));
  }
  if (operation.kind == OpKind::kBroadcast &&
      (operation.root_rank < 0 || operation.root_rank >= size)) {
    return Format("root rank {} is not a rank of this world of {} (0 to {})", operation.root_rank,
                  size, size - 1);
  }
  return {};
}

}  // namespace

std::size_t TensorBytes(const TensorArg& tensor) {
  return static_cast<std::size_t>(CheckedBytes(tensor).value_or(0));
}

Status CheckOperation(const Operation& operation, int rank, int size) {
  std::string fault = OperationFault(operation, size);
  for (std::size_t i = 0; fault.empty() && i < operation.tensors.size(); ++i) {
    fault = TensorFault(operation, operation.tensors[i], rank, size);
    if (!fault.empty() && operation.tensors.size() > 1) fault = Format("tensor {}: {}", i, fault);
  }
  if (fault.empty()) return Status::Ok();
  const std::string who = operation.name.empty()
                              ? Format("unnamed {}", OpKindName(operation.kind))
                              : Format("{} '{}'", OpKindName(operation.kind), operation.name);
  return Status(StatusCode::kInvalidArgument, Format("{}: {}", who, fault));
}

wire::Signature SignatureOf(const Operation& operation) {
  wire::Signature signature;
  signature.kind = operation.kind;
  // An unnamed operation gets its name when it is admitted; until then errors call it by its kind.
  signature.name = operation.name.empty() ? OpKindName(operation.kind) : operation.name;
  if (operation.kind == OpKind::kAllreduce) {
    signature.reduce_op = operation.reduce_op;
    signature.prescale = operation.prescale;
    signature.postscale = operation.postscale;
  }
  if (operation.kind == OpKind::kBroadcast) signature.root_rank = operation.root_rank;
  signature.tensors.reserve(operation.tensors.size());
  for (const TensorArg& tensor : operation.tensors) {
    signature.tensors.push_back({tensor.dtype, tensor.layout, tensor.shape});
    if (operation.kind != OpKind::kAllgather) continue;
    Shape& shape = signature.tensors.back().shape;
    shape.erase(shape.begin());
  }
  return signature;
}

std::vector<std::int64_t> FirstDimensions(const Operation& operation) {
  std::vector<std::int64_t> first_dims;
  if (operation.kind != OpKind::kAllgather) return first_dims;
  for (const TensorArg& tensor : operation.tensors) first_dims.push_back(tensor.shape.front());
  return first_dims;
}

}  // namespace hvl::engine
