// Ordinary reductions: plain tensors, plain arguments. Everything else is left to
// horovodlite/torch, which also says what is wrong with a call.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "horovodlite/types.h"
#include "python/calls.h"
#include "python/py_session.h"

namespace hvl::python {
namespace {

namespace py = pybind11;

/// The arguments of the functions that reduce, by position.
enum Argument : std::uint8_t {
  kTensors,
  kAverage,
  kName,
  kOp,
  kPrescale,
  kPostscale,
  kProcessSet,
  kInPlace,
  kArguments
};

/// What an ordinary call asks for.
struct Request {
  bool in_place = false;
  bool differentiable = false;  ///< autograd may have to know of it
  py::object session;           ///< keeps the next one
  PySession* current = nullptr;
  std::optional<std::string_view> name;  ///< as the caller knows it
  Operation operation;                   ///< without a name
  TensorArg tensor;                      ///< of an operation that is no group, in its place
  py::object keep;
  py::object result;
};

bool ReadName(PyObject* value, std::optional<std::string_view>& name) {
  if (value == Py_None) return true;
  if (!PyUnicode_CheckExact(value) || !PyUnicode_IS_COMPACT_ASCII(value)) return false;
  name = std::string_view(reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(value)),
                          static_cast<std::size_t>(PyUnicode_GET_LENGTH(value)));
  return true;
}

bool ReadOp(PyObject* value, ReduceOp& op) {
  if (value == Py_None) return true;
  if (!PyLong_CheckExact(value)) return false;
  constexpr ReduceOp kKnown[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                 ReduceOp::kProduct};
  int overflow = 0;
  const long number = PyLong_AsLongAndOverflow(value, &overflow);  // 0 or -1 when it is too large
  const auto found = std::find_if(std::begin(kKnown), std::end(kKnown), [number](ReduceOp known) {
    return number == static_cast<long>(known);
  });
  if (overflow != 0 || found == std::end(kKnown)) return false;
  op = *found;
  return true;
}

bool ReadFactor(PyObject* value, double& factor) {
  if (!PyFloat_CheckExact(value)) return false;
  factor = PyFloat_AS_DOUBLE(value);
  return true;
}

bool ReadProcessSet(const Calls& calls, PyObject* value, ProcessSetId& id) {
  if (value == calls.framework->world.ptr() || value == Py_None) return true;
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != calls.framework->process_set.ptr())
    return false;
  const auto number =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(value, calls.process_set_id.ptr()));
  if (!number || !PyLong_CheckExact(number.ptr())) {
    PyErr_Clear();
    return false;
  }
  const unsigned long long whole = PyLong_AsUnsignedLongLong(number.ptr());
  if (whole >= kFirstPairSet) {  // also what is no number of that type
    PyErr_Clear();
    return false;
  }
  id = static_cast<ProcessSetId>(whole);
  return true;
}

bool RequiresGradient(const Calls& calls, PyObject* tensor) {
  const auto answer =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor, calls.requires_grad.ptr()));
  if (!answer) throw py::error_already_set();
  return answer.ptr() != Py_False;
}

/// Describes one tensor of the request; `target` is where its result goes, which may be itself.
bool ReadTensor(const Calls& calls, PyObject* tensor, const Request& request, TensorArg& arg,
                py::object& target) {
  if (!calls.framework->reader.Read(tensor, arg)) return false;
  if (request.differentiable && RequiresGradient(calls, tensor)) return false;
  if (request.in_place) {
    target = py::reinterpret_borrow<py::object>(tensor);
    return true;
  }
  target = py::reinterpret_steal<py::object>(
      PyObject_CallOneArg(calls.framework->empty_like.ptr(), tensor));
  if (!target) throw py::error_already_set();
  TensorArg result;
  if (!calls.framework->reader.Read(target.ptr(), result) || result.layout != arg.layout)
    return false;
  arg.output = result.output;
  return true;
}

/// Whether two of the tensors, which have no holes, share any element.
bool SharesMemory(const std::vector<TensorArg>& tensors) {
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> blocks;  // begin, end
  blocks.reserve(tensors.size());
  for (const TensorArg& tensor : tensors) {
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.input);
    const auto bytes =
        static_cast<std::uintptr_t>(ElementCount(tensor.shape)) * DTypeBytes(tensor.dtype);
    if (bytes > 0) blocks.emplace_back(begin, begin + bytes);
  }
  if (!std::is_sorted(blocks.begin(), blocks.end())) {  // parts of one block often are
    std::sort(blocks.begin(), blocks.end());
  }
  const auto reaches_next = [](const auto& block, const auto& next) {
    return next.first < block.second;
  };
  return std::adjacent_find(blocks.begin(), blocks.end(), reaches_next) != blocks.end();
}

bool ReadGroup(const Calls& calls, PyObject* group, Request& request) {
  if (!PyList_CheckExact(group) && !PyTuple_CheckExact(group)) return false;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(group);
  if (count == 0) return false;
  request.operation.tensors.reserve(static_cast<std::size_t>(count));
  py::list inputs(request.in_place ? 0 : count), results(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PySequence_Fast_GET_SIZE(group) != count) return false;  // Python code has run meanwhile
    auto tensor = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(group, i));
    py::object target;
    TensorArg& arg = request.operation.tensors.emplace_back();
    if (!ReadTensor(calls, tensor.ptr(), request, arg, target)) return false;
    if (!request.in_place) PyList_SET_ITEM(inputs.ptr(), i, tensor.release().ptr());
    PyList_SET_ITEM(results.ptr(), i, target.release().ptr());
  }
  if (request.in_place && SharesMemory(request.operation.tensors)) return false;
  request.result = results;
  request.keep = py::make_tuple(std::move(inputs), std::move(results));
  return true;
}

bool ReadSingle(const Calls& calls, PyObject* tensor, Request& request) {
  if (!ReadTensor(calls, tensor, request, request.tensor, request.result)) return false;
  request.keep =
      request.in_place ? request.result : py::make_tuple(py::handle(tensor), request.result);
  return true;
}

std::string Site(const Framework& framework, const Request& request) {
  const PySession& session = *request.current;
  const bool wanted = request.name ? session.debug() : session.checks_sites();
  if (!wanted) return {};
  return framework.caller_site().cast<std::string>();
}

/// False when the call is not ordinary: then horovodlite/torch does it, or says what is wrong.
bool ReadReduction(const Calls& calls, PyObject* const* arguments, bool grouped, bool asynchronous,
                   Request& request) {
  if (!calls.framework) return false;
  request.session = CurrentSession(calls);
  if (request.session.is_none()) return false;
  Operation& operation = request.operation;
  operation.kind = OpKind::kAllreduce;
  request.in_place = arguments[kInPlace] == Py_True;
  request.differentiable = !request.in_place && !asynchronous;
  const bool ordinary = arguments[kAverage] == Py_None &&
                        ReadName(arguments[kName], request.name) &&
                        ReadOp(arguments[kOp], operation.reduce_op) &&
                        ReadFactor(arguments[kPrescale], operation.prescale) &&
                        ReadFactor(arguments[kPostscale], operation.postscale) &&
                        ReadProcessSet(calls, arguments[kProcessSet], operation.process_set) &&
                        (grouped ? ReadGroup : ReadSingle)(calls, arguments[kTensors], request);
  if (!ordinary) return false;
  request.current = ObjectIn<PySession>(request.session, calls.session_type);
  operation.site = Site(*calls.framework, request);
  return true;
}

void AppendName(const char* prefix, Request& request) {
  if (!request.name) return;
  std::string& name = request.operation.name;
  name.reserve(std::strlen(prefix) + request.name->size());
  name.append(prefix).append(*request.name);
}

std::shared_ptr<Kept> StartGroup(Calls& /*calls*/, Request& request, bool wake) {
  AppendName("grouped_allreduce.", request);
  return request.current->Start(std::move(request.operation), std::move(request.keep), wake);
}

/// Named operations in place come again with the same tensors. Results that are new tensors are
/// somewhere else each time.
std::shared_ptr<Kept> StartSingle(Calls& calls, Request& request, bool wake) {
  PySession& session = *request.current;
  const bool may_come_again = request.in_place && request.name;
  std::shared_ptr<const Operation> known;
  if (may_come_again) known = calls.known.Find(*request.name);
  if (!known || !IsSame(*known, request.operation, request.tensor)) {
    request.operation.tensors.push_back(std::move(request.tensor));
    AppendName("allreduce.", request);
    if (!may_come_again) {
      return session.Start(std::move(request.operation), std::move(request.keep), wake);
    }
    known = std::make_shared<const Operation>(std::move(request.operation));
    calls.known.Keep(*request.name, known);
  }
  return session.Start(std::move(known), std::move(request.keep), wake);
}

PyObject* Describe(PyObject* module, PyObject* tensor) {
  return Guarded([=]() -> PyObject* {
    TensorArg arg;
    if (!CallsOf(module).framework->reader.Read(tensor, arg)) Py_RETURN_NONE;
    py::tuple shape(arg.shape.size());
    for (std::size_t i = 0; i < arg.shape.size(); ++i) shape[i] = arg.shape[i];
    const auto address = reinterpret_cast<std::uintptr_t>(arg.input);
    return py::make_tuple(address, address, static_cast<int>(arg.dtype), shape, arg.layout)
        .release()
        .ptr();
  });
}

void RequireArguments(Py_ssize_t count) {
  if (count != Py_ssize_t{kArguments}) throw py::type_error("wrong number of arguments");
}

template <bool kGrouped>
PyObject* StartAllreduce(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=]() -> PyObject* {
    RequireArguments(count);
    Calls& calls = CallsOf(module);
    Request request;
    if (!ReadReduction(calls, arguments, kGrouped, true, request)) Py_RETURN_NONE;
    std::shared_ptr<Kept> kept =
        (kGrouped ? StartGroup : StartSingle)(calls, request, /*wake=*/true);
    return NewHandle(calls, {std::move(kept), std::move(request.result), {}}).release().ptr();
  });
}

template <bool kGrouped>
PyObject* RunAllreduce(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=]() -> PyObject* {
    RequireArguments(count);
    Request request;
    Calls& calls = CallsOf(module);
    if (!ReadReduction(calls, arguments, kGrouped, false, request)) Py_RETURN_NONE;
    Finish(*(kGrouped ? StartGroup : StartSingle)(calls, request, /*wake=*/false));
    return request.result.release().ptr();
  });
}

}  // namespace

void BindReductions(py::module_& module) {
#define HVL_ARGUMENTS                                                                \
  "average: bool | None, name: str | None, op: int | None, prescale_factor: float, " \
  "postscale_factor: float, process_set: object, in_place: bool, /) -> "
  static PyMethodDef methods[] = {
      {"describe", &Describe, METH_O,
       "describe(tensor: object, /) -> object\n\nWhat the core sees; None if it is not ordinary."},
      {"allreduce", AsCFunction(&RunAllreduce<false>), METH_FASTCALL,
       "allreduce(tensor: object, " HVL_ARGUMENTS
       "object\n\nThe result, or None when the call is not ordinary."},
      {"allreduce_async", AsCFunction(&StartAllreduce<false>), METH_FASTCALL,
       "allreduce_async(tensor: object, " HVL_ARGUMENTS
       "Number | None\n\nThe handle, or None when the call is not ordinary."},
      {"grouped_allreduce", AsCFunction(&RunAllreduce<true>), METH_FASTCALL,
       "grouped_allreduce(tensors: object, " HVL_ARGUMENTS
       "object\n\nThe results, or None when the call is not ordinary."},
      {"grouped_allreduce_async", AsCFunction(&StartAllreduce<true>), METH_FASTCALL,
       "grouped_allreduce_async(tensors: object, " HVL_ARGUMENTS
       "Number | None\n\nThe handle, or None when the call is not ordinary."},
      {nullptr, nullptr, 0, nullptr}};
#undef HVL_ARGUMENTS
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace hvl::python
