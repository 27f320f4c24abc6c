#include "csrc/torch/tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "horovodlite/error.h"

namespace hvl::torch {
namespace {

constexpr std::size_t kMostLayoutDimensions = 8;  // four bits for each in a Layout

Status Unsupported(std::string what) { return {StatusCode::kInvalidArgument, std::move(what)}; }

Status CheckSupported(const at::Tensor& tensor) {
  if (!tensor.defined()) return Unsupported("an undefined tensor was passed");
  if (tensor.is_nested() || tensor.layout() != c10::kStrided) {
    return Unsupported(c10::str("a tensor of layout ", tensor.layout(),
                                " is not supported: pass tensor.to_dense()"));
  }
  if (!tensor.is_complex() && !DTypeOf(tensor.scalar_type())) {
    return Unsupported(c10::str("tensors of type ", tensor.scalar_type(), " are not supported"));
  }
  if (tensor.scalar_type() == at::kComplexHalf) {
    return Unsupported("tensors of type ComplexHalf are not supported: pass complex64");
  }
  if (!tensor.is_cpu()) {
    return Unsupported(
        c10::str("a tensor on ", tensor.device(), " is not supported: pass tensor.cpu()"));
  }
  return Status::Ok();
}

at::Tensor AsNumbers(const at::Tensor& tensor) {
  at::Tensor numbers = tensor.requires_grad() ? tensor.detach() : tensor;
  if (numbers.is_complex()) numbers = at::view_as_real(numbers.resolve_conj());
  return numbers.is_neg() ? numbers.resolve_neg() : numbers;
}

}  // namespace

std::optional<DType> DTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return DType::kUint8;
    case at::kChar:
      return DType::kInt8;
    case at::kShort:
      return DType::kInt16;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kBool:
      return DType::kBool;
    case at::kBFloat16:
      return DType::kBfloat16;
    default:
      return std::nullopt;  // LibTorch has many more, and more with each version
  }
}

std::optional<Layout> LayoutOf(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return kRowMajor;
  std::vector<std::int64_t> order;  // slowest first; an extent of one has no place in memory
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) != 1) order.push_back(dim);
  }
  std::stable_sort(order.begin(), order.end(), [&tensor](std::int64_t a, std::int64_t b) {
    return tensor.stride(a) > tensor.stride(b);
  });
  std::int64_t expected = 1;
  Layout layout = 0;
  for (std::size_t i = order.size(); i-- > 0;) {
    if (tensor.stride(order[i]) != expected) return std::nullopt;
    expected *= tensor.size(order[i]);
  }
  for (const std::int64_t dim : order) {
    if (dim >= static_cast<std::int64_t>(kMostLayoutDimensions)) return std::nullopt;
    layout = layout << 4 | static_cast<Layout>(dim + 1);
  }
  return layout;
}

Result<Numbers> InMemoryOrder(const at::Tensor& tensor) {
  if (Status status = CheckSupported(tensor); !status.ok()) return status;
  const at::Tensor numbers = AsNumbers(tensor);
  if (const std::optional<Layout> layout = LayoutOf(numbers)) return Numbers{numbers, *layout};
  return Numbers{numbers.contiguous(), kRowMajor};
}

Result<at::Tensor> RowMajor(const at::Tensor& tensor) {
  if (Status status = CheckSupported(tensor); !status.ok()) return status;
  return AsNumbers(tensor).contiguous();
}

at::Tensor Like(const at::Tensor& numbers, const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_complex(numbers) : numbers;
}

TensorArg Argument(const Numbers& source, void* output) {
  TensorArg argument;
  argument.input = source.tensor.const_data_ptr();
  argument.output = output;
  argument.dtype = *DTypeOf(source.tensor.scalar_type());
  argument.shape.assign(source.tensor.sizes().begin(), source.tensor.sizes().end());
  argument.layout = source.layout;
  return argument;
}

at::Tensor OnMemory(std::shared_ptr<const void> owner, void* data, at::IntArrayRef sizes,
                    at::IntArrayRef strides, at::ScalarType type) {
  if (data == nullptr) return at::empty(sizes, type);
  const auto keep = [owner = std::move(owner)](void*) {};
  return at::from_blob(data, sizes, strides, keep, type);
}

at::Tensor FromGathered(const GatheredTensor& gathered, const at::Tensor& tensor) {
  const at::ScalarType type = c10::toRealValueType(tensor.scalar_type());
  std::vector<std::int64_t> sizes(gathered.shape.begin(), gathered.shape.end());
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return Like(OnMemory(gathered.owner, gathered.data, sizes, strides, type), tensor);
}

void Refuse(std::string message) {
  throw Error({StatusCode::kInvalidArgument, std::move(message)});
}

std::string SizesText(const at::Tensor& tensor) { return ShapeToString(tensor.sizes()); }

}  // namespace hvl::torch
