#include "python/tensor_arg.h"

#include <cstdint>
#include <utility>

namespace hvl::python {
namespace {

namespace py = pybind11;

constexpr std::size_t kFields = 5;  // input, output, dtype, shape, layout

const void* Address(py::handle value) {
  const std::uint64_t address = PyLong_AsUnsignedLongLong(value.ptr());
  if (address == static_cast<std::uint64_t>(-1) && PyErr_Occurred()) throw py::error_already_set();
  return reinterpret_cast<const void*>(address);  // NOLINT: an address is what Python gives us
}

std::int64_t Integer(py::handle value) {
  const std::int64_t number = PyLong_AsLongLong(value.ptr());
  if (number == -1 && PyErr_Occurred()) throw py::error_already_set();
  return number;
}

Shape ShapeOf(py::handle value) {
  if (!PyTuple_Check(value.ptr())) throw py::type_error("a tensor's shape must be a tuple");
  Shape shape;
  for (const py::handle dimension : py::reinterpret_borrow<py::tuple>(value)) {
    shape.push_back(Integer(dimension));
    if (shape[shape.size() - 1] < 0) {
      throw py::value_error("a tensor's shape " + ShapeToString(shape) + " is negative");
    }
  }
  return shape;
}

TensorArg MakeTensorArg(py::handle value, OpKind kind) {
  if (!PyTuple_Check(value.ptr()) || PyTuple_GET_SIZE(value.ptr()) != Py_ssize_t{kFields}) {
    throw py::type_error("a tensor must be a tuple (input, output, dtype, shape, layout)");
  }
  const auto field = [&value](Py_ssize_t index) {
    return py::handle(PyTuple_GET_ITEM(value.ptr(), index));
  };
  TensorArg tensor;
  tensor.input = Address(field(0));
  tensor.output = const_cast<void*>(Address(field(1)));  // NOLINT: the caller's own memory
  tensor.dtype = static_cast<DType>(Integer(field(2)));
  tensor.shape = ShapeOf(field(3));
  tensor.layout = static_cast<Layout>(Integer(field(4)));
  if (DTypeBytes(tensor.dtype) == 0) {
    throw py::value_error(std::to_string(Integer(field(2))) + " is not the number of a dtype");
  }
  const bool needs_output = kind == OpKind::kAllreduce || kind == OpKind::kBroadcast;
  if (ElementCount(tensor.shape) > 0 &&
      (tensor.input == nullptr || (needs_output && tensor.output == nullptr))) {
    throw py::value_error("a tensor of shape " + ShapeToString(tensor.shape) +
                          " has no memory behind it");
  }
  return tensor;
}

}  // namespace

Operation MakeOperation(int kind, std::string name, const py::list& tensors, int reduce_op,
                        double prescale, double postscale, int root_rank, ProcessSetId process_set,
                        std::vector<std::int64_t> splits, std::string site) {
  Operation operation;
  operation.kind = static_cast<OpKind>(kind);
  operation.name = std::move(name);
  operation.tensors.reserve(tensors.size());
  for (const py::handle tensor : tensors) {
    operation.tensors.push_back(MakeTensorArg(tensor, operation.kind));
  }
  operation.reduce_op = static_cast<ReduceOp>(reduce_op);
  operation.prescale = prescale;
  operation.postscale = postscale;
  operation.root_rank = root_rank;
  operation.process_set = process_set;
  operation.splits = std::move(splits);
  operation.site = std::move(site);
  return operation;
}

}  // namespace hvl::python
