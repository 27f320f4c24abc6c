#include "python/tensor_reader.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace hvl::python {
namespace {

namespace py = pybind11;

std::optional<DType> DTypeOf(dlpack::DataType type) {
  if (type.lanes != 1) return std::nullopt;
  switch (type.code << 8 | type.bits) {
    case dlpack::kUint << 8 | 8:
      return DType::kUint8;
    case dlpack::kInt << 8 | 8:
      return DType::kInt8;
    case dlpack::kInt << 8 | 16:
      return DType::kInt16;
    case dlpack::kInt << 8 | 32:
      return DType::kInt32;
    case dlpack::kInt << 8 | 64:
      return DType::kInt64;
    case dlpack::kFloat << 8 | 16:
      return DType::kFloat16;
    case dlpack::kFloat << 8 | 32:
      return DType::kFloat32;
    case dlpack::kFloat << 8 | 64:
      return DType::kFloat64;
    case dlpack::kBfloat << 8 | 16:
      return DType::kBfloat16;
    case dlpack::kBool << 8 | 8:
      return DType::kBool;
    default:
      return std::nullopt;
  }
}

bool IsRowMajor(const dlpack::Tensor& tensor) {
  if (std::find(tensor.shape, tensor.shape + tensor.dimensions, 0) !=
      tensor.shape + tensor.dimensions) {
    return true;
  }
  std::int64_t expected = 1;  // no larger than the memory, as long as strides are as expected
  for (std::int32_t dim = tensor.dimensions - 1; dim >= 0; --dim) {
    if (tensor.shape[dim] == 1) continue;
    if (tensor.strides[dim] != expected) return false;
    expected *= tensor.shape[dim];
  }
  return true;
}

}  // namespace

std::optional<Layout> LayoutOf(const dlpack::Tensor& tensor) {
  if (IsRowMajor(tensor)) return Layout{0};
  constexpr std::size_t kMostDimensions = 8;  // four bits for each in 32 bits
  std::array<std::int32_t, kMostDimensions> order{};
  std::size_t count = 0;
  for (std::int32_t dim = 0; dim < tensor.dimensions; ++dim) {
    if (tensor.shape[dim] == 1) continue;
    if (static_cast<std::size_t>(dim) >= kMostDimensions) return std::nullopt;
    std::size_t place = count++;  // by falling strides
    for (; place > 0 && tensor.strides[order[place - 1]] < tensor.strides[dim]; --place) {
      order[place] = order[place - 1];
    }
    order[place] = dim;
  }
  std::int64_t expected = 1;
  for (std::size_t i = count; i-- > 0;) {
    if (tensor.strides[order[i]] != expected) return std::nullopt;
    expected *= tensor.shape[order[i]];
  }
  Layout layout = 0;
  for (std::size_t i = 0; i < count; ++i) layout = layout << 4 | static_cast<Layout>(order[i] + 1);
  return layout;
}

TensorReader::TensorReader(py::type tensor_type, py::type parameter_type,
                           const py::object& mark_negative)
    : tensor_type_(std::move(tensor_type)),
      parameter_type_(std::move(parameter_type)),
      negative_mark_(tensor_type_, mark_negative) {
  if (!py::hasattr(tensor_type_, dlpack::kExchangeAttribute)) return;  // torch before 2.10
  const py::object capsule = tensor_type_.attr(dlpack::kExchangeAttribute);
  const void* const pointer = PyCapsule_GetPointer(capsule.ptr(), dlpack::kExchangeCapsule);
  if (pointer == nullptr) throw py::error_already_set();
  const auto* exchange = static_cast<const dlpack::Exchange*>(pointer);
  while (exchange != nullptr && exchange->version.major != dlpack::kMajorVersion) {
    exchange = exchange->previous;
  }
  exchange_ = exchange;
  is_negative_view_ = tensor_type_.attr("is_neg");
}

bool TensorReader::Describe(PyObject* tensor, dlpack::Tensor& description) const {
  const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  if (exchange_ == nullptr || (type != tensor_type_.ptr() && type != parameter_type_.ptr())) {
    return false;
  }
  if (exchange_->describe(tensor, &description) != 0) {  // a sparse one, for example
    PyErr_Clear();
    return false;
  }
  description.data = static_cast<char*>(description.data) + description.byte_offset;
  return description.device.type == dlpack::kCpu && DTypeOf(description.dtype);
}

bool TensorReader::IsNegativeView(PyObject* tensor) const {
  if (negative_mark_.found()) return negative_mark_.IsOn(tensor);
  PyObject* const answer = PyObject_CallOneArg(is_negative_view_.ptr(), tensor);
  if (answer == nullptr) PyErr_Clear();
  Py_XDECREF(answer);
  return answer != Py_False;
}

bool TensorReader::Read(PyObject* tensor, TensorArg& arg) const {
  dlpack::Tensor seen{};
  if (!Describe(tensor, seen)) return false;
  const std::optional<Layout> layout = LayoutOf(seen);
  if (!layout || IsNegativeView(tensor)) return false;
  arg.input = arg.output = seen.data;
  arg.dtype = *DTypeOf(seen.dtype);
  arg.shape.assign(seen.shape, seen.shape + seen.dimensions);
  arg.layout = *layout;
  return true;
}

std::size_t ByteCount(const dlpack::Tensor& tensor) {
  std::size_t bytes = tensor.dtype.bits / 8;
  for (std::int32_t dim = 0; dim < tensor.dimensions; ++dim) {
    bytes *= static_cast<std::size_t>(tensor.shape[dim]);
  }
  return bytes;
}

bool HaveOneForm(const dlpack::Tensor& a, const dlpack::Tensor& b) {
  if (DTypeOf(a.dtype) != DTypeOf(b.dtype) || a.dimensions != b.dimensions) return false;
  for (std::int32_t dim = 0; dim < a.dimensions; ++dim) {
    if (a.shape[dim] != b.shape[dim]) return false;
    if (a.shape[dim] != 1 && a.strides[dim] != b.strides[dim]) return false;
  }
  return true;
}

}  // namespace hvl::python
