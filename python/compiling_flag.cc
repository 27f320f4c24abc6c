#include "python/compiling_flag.h"

#include <utility>

namespace hvl::python {

namespace py = pybind11;

CompilingFlag::CompilingFlag(py::object function) : function_(std::move(function)) {
  const py::object code = py::getattr(function_, "__code__", py::none());
  const py::object variables = py::getattr(function_, "__globals__", py::none());
  if (code.is_none() || !py::isinstance<py::dict>(variables)) return;
  if (code.attr("co_names").contains(name_)) variables_ = variables;
}

bool CompilingFlag::IsOn() const {
  if (variables_ && PyDict_GetItemWithError(variables_.ptr(), name_.ptr()) == Py_False) {
    return false;
  }
  if (PyErr_Occurred()) throw py::error_already_set();
  const auto answer = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(function_.ptr()));
  if (!answer) throw py::error_already_set();
  return answer.ptr() != Py_False;
}

}  // namespace hvl::python
