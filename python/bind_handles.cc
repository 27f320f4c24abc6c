// Numbers for operations in flight, and what one can ask with them.
#include <memory>
#include <utility>

#include "python/bind_handle.h"
#include "python/calls.h"

namespace hvl::python {
namespace {

namespace py = pybind11;

void DropHandle(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject* const module = PyType_GetModule(type);
  const Unfetched dropped = CallsOf(module).handles.Take(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* ReduceHandle(PyObject* self, PyObject*) {
  return Guarded([self] {
    const auto integer =
        py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyLong_Type));
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Long(self));
    if (!number) throw py::error_already_set();
    return py::make_tuple(integer, py::make_tuple(number)).release().ptr();
  });
}

py::object MakeHandleType(py::handle module) {
  static PyMethodDef methods[] = {
      {"__reduce__", &ReduceHandle, METH_NOARGS,
       "A copy is a plain number, so that its end does not make the handle unknown."},
      {nullptr, nullptr, 0, nullptr}};
  PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(&DropHandle)},
      {Py_tp_methods, methods},
      {Py_tp_doc,
       const_cast<char*>("A number for poll() and synchronize(). The result lives as long as the "
                         "handle.\n\n"
                         "Dropping a handle that nobody has waited for does not cancel the "
                         "operation; it only throws the\nresult away.")},
      {0, nullptr}};
  PyType_Spec spec{"horovodlite.torch.Handle", 0, 0, Py_TPFLAGS_DEFAULT, slots};
  const auto bases =
      py::make_tuple(py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyLong_Type)));
  PyObject* const type = PyType_FromModuleAndSpec(module.ptr(), &spec, bases.ptr());
  if (type == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(type);
}

PyObject* NewHandleFor(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=] {
    if (count != 2) throw py::type_error("new_handle() takes an operation and a function");
    const auto& operation = py::handle(arguments[0]).cast<const PyHandle&>();
    Unfetched unfetched{operation.kept(), {}, py::reinterpret_borrow<py::object>(arguments[1])};
    return NewHandle(CallsOf(module), std::move(unfetched)).release().ptr();
  });
}

PyObject* Poll(PyObject* module, PyObject* handle) {
  return Guarded(
      [=] { return PyBool_FromLong(CallsOf(module).handles.Find(handle).kept->operation.done()); });
}

/// The result of an operation that is done.
PyObject* Fetch(const Unfetched& operation) {
  return Guarded([&] {
    Finish(*operation.kept);
    return operation.result.inc_ref().ptr();
  });
}

PyObject* Synchronize(PyObject* module, PyObject* handle) {
  HandleTable& handles = CallsOf(module).handles;
  if (const Unfetched done = handles.TakeDone(handle); done.kept) return Fetch(done);
  PyObject* const result = Guarded([&] {
    const Unfetched operation = handles.Find(handle);  // a copy: others may take it meanwhile
    if (operation.finish) return operation.finish(PyHandle(operation.kept)).release().ptr();
    Finish(*operation.kept);
    return operation.result.inc_ref().ptr();
  });
  // Ctrl-C ends the wait only.
  if (result == nullptr && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
  const py::error_scope kept_error;
  const Unfetched fetched = handles.Take(handle);
  return result;
}

}  // namespace

py::object NewHandle(Calls& calls, Unfetched operation) {
  const py::int_ number(calls.handles.Add(std::move(operation)));
  const auto arguments = py::reinterpret_steal<py::object>(PyTuple_Pack(1, number.ptr()));
  if (!arguments) throw py::error_already_set();
  // What calling the type comes to, without looking for an __init__ of its own.
  auto* const type = reinterpret_cast<PyTypeObject*>(calls.handle_type.ptr());
  PyObject* const handle = PyLong_Type.tp_new(type, arguments.ptr(), nullptr);
  if (handle == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(handle);
}

void BindHandles(py::module_& module) {
  CallsOf(module.ptr()).handle_type = MakeHandleType(module);
  module.attr("Number") = CallsOf(module.ptr()).handle_type;
  static PyMethodDef methods[] = {
      {"new_handle", AsCFunction(&NewHandleFor), METH_FASTCALL,
       "new_handle(operation: Handle, finish: object, /) -> Number\n\nRegisters an operation."},
      {"poll", &Poll, METH_O, "poll(handle: int, /) -> bool\n\nWhether it is done."},
      {"synchronize", &Synchronize, METH_O,
       "synchronize(handle: int, /) -> object\n\nWaits; gives the result and forgets the handle."},
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace hvl::python
