// The module `calls`: the hottest functions of the Python API in one C call each, and the handles
// of all asynchronous ones. It is written with Python's C API, because a call through pybind11
// takes longer than everything else that an ordinary call does here.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <memory>
#include <new>
#include <optional>

#include "python/compiling_flag.h"
#include "python/handle_table.h"
#include "python/known_operations.h"
#include "python/sole_owner.h"
#include "python/tensor_reader.h"

namespace hvl::python {

/// What the Python side tells about itself, once.
struct Framework {
  pybind11::object holder;  ///< of the session that runs now
  TensorReader reader;
  pybind11::object empty_like;   ///< a tensor's like, uninitialised
  pybind11::type process_set;    ///< the class
  pybind11::object world;        ///< the process set of all ranks
  pybind11::object caller_site;  ///< where the user's program is
  CompilingFlag is_compiling;
  SoleOwner sole_owner;
};

/// The state of the module. Needs the GIL.
struct Calls {
  HandleTable handles;
  KnownOperations known;
  std::optional<Framework> framework;
  pybind11::object handle_type, step_type, unit_type, slot_type, hook_type;
  pybind11::object session_type, prepared_type;  ///< made by pybind11
  // Attributes of the framework's objects.
  pybind11::str session{"session"}, process_set_id{"process_set_id"};
  pybind11::str requires_grad{"requires_grad"}, grad{"grad"};
  pybind11::str gradient_hooks{"_post_accumulate_grad_hooks"};
  pybind11::str start{"start"}, send_flags{"_send_flags"}, version{"_version"};
};

inline Calls& CallsOf(PyObject* module) {
  return **static_cast<Calls**>(PyModule_GetState(module));
}

/// The session that runs now, or None. Requires a framework.
inline pybind11::object CurrentSession(const Calls& calls) {
  PyObject* const session = PyObject_GetAttr(calls.framework->holder.ptr(), calls.session.ptr());
  if (session == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(session);
}

/// The C++ object in an object of Python. As pybind11's cast, but for objects of `type` itself it
/// does not look up by the name of T what that is.
template <typename T>
T* ObjectIn(pybind11::handle object, const pybind11::object& type) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) != type.ptr()) return object.cast<T*>();
  auto* const instance = reinterpret_cast<pybind11::detail::instance*>(object.ptr());
  return instance->get_value_and_holder().value_ptr<T>();
}

/// Runs what may throw where only Python's own way of failing is allowed.
template <typename Body>
PyObject* Guarded(Body body) noexcept {
  try {
    return body();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const pybind11::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

using FastFunction = PyObject*(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

/// As METH_FASTCALL wants it.
inline PyCFunction AsCFunction(FastFunction* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

/// The number by which Python knows the operation.
pybind11::object NewHandle(Calls& calls, Unfetched operation);

/// Each adds its functions to the module.
void BindHandles(pybind11::module_& module);
void BindReductions(pybind11::module_& module);

/// Makes the module.
void BindCalls(pybind11::module_& core);

}  // namespace hvl::python
