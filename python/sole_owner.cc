#include "python/sole_owner.h"

#include <utility>

namespace hvl::python {

namespace py = pybind11;

SoleOwner::SoleOwner(const py::object& parameter, py::object memory_uses)
    : memory_uses_(std::move(memory_uses)) {
  const py::object gradient = parameter.attr("grad");
  sole_ = Count(gradient.ptr());
}

bool SoleOwner::Owns(PyObject* gradient) const { return sole_ && Count(gradient) == sole_; }

std::optional<SoleOwner::Uses> SoleOwner::Count(PyObject* gradient) const {
  if (memory_uses_.is_none()) return std::nullopt;
  const auto result = [](PyObject* object) { return py::reinterpret_steal<py::object>(object); };
  Uses uses;
  uses.object = Py_REFCNT(gradient);
  const auto tensor = result(PyObject_CallMethodNoArgs(gradient, use_count_.ptr()));
  const auto storage = result(PyObject_CallMethodNoArgs(gradient, storage_.ptr()));
  const auto address = result(storage ? PyObject_GetAttr(storage.ptr(), address_.ptr()) : nullptr);
  const auto memory =
      result(address ? PyObject_CallOneArg(memory_uses_.ptr(), address.ptr()) : nullptr);
  if (tensor && memory) {
    uses.tensor = PyLong_AsLong(tensor.ptr());
    uses.memory = PyLong_AsLong(memory.ptr());
  }
  const bool is_known = tensor && memory && !PyErr_Occurred();
  PyErr_Clear();
  return is_known ? std::optional(uses) : std::nullopt;
}

}  // namespace hvl::python
