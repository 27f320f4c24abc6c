#include "python/calls.h"

#include <utility>

#include "python/gradient_step.h"
#include "python/prepared.h"
#include "python/py_session.h"

namespace hvl::python {
namespace {

namespace py = pybind11;

PyObject* Use(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=]() -> PyObject* {
    if (count != 11) throw py::type_error("use() takes eleven arguments");
    const auto object = [arguments](int index) {
      return py::reinterpret_borrow<py::object>(arguments[index]);
    };
    CallsOf(module).framework.emplace(
        Framework{object(0), TensorReader(py::type(object(1)), py::type(object(2)), object(10)),
                  object(3), py::type(object(4)), object(5), object(6), CompilingFlag(object(7)),
                  SoleOwner(object(8), object(9))});
    Py_RETURN_NONE;
  });
}

void FreeCalls(void* module) {
  Calls*& calls = *static_cast<Calls**>(PyModule_GetState(static_cast<PyObject*>(module)));
  delete std::exchange(calls, nullptr);
}

}  // namespace

void BindCalls(py::module_& core) {
  static PyMethodDef methods[] = {
      {"use", AsCFunction(&Use), METH_FASTCALL,
       "use(holder: type, tensor_type: type, parameter_type: type, empty_like: object, "
       "process_set_type: type, "
       "world: object, caller_site: object, is_compiling: object, with_gradient: object, "
       "memory_uses: object, mark_negative: object, /) -> None\n\nTells what belongs to the "
       "framework."},
      {nullptr, nullptr, 0, nullptr}};
  static PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                   .m_name = "horovodlite._core.calls",
                                   .m_doc = "The hottest functions, and handles.",
                                   .m_size = sizeof(Calls*),
                                   .m_methods = methods,
                                   .m_slots = nullptr,
                                   .m_traverse = nullptr,
                                   .m_clear = nullptr,
                                   .m_free = &FreeCalls};
  auto calls = std::make_unique<Calls>();
  calls->session_type = py::type::of<PySession>();
  calls->prepared_type = py::type::of<Prepared>();
  auto module = py::reinterpret_steal<py::module_>(PyModule_Create(&definition));
  if (!module) throw py::error_already_set();
  *static_cast<Calls**>(PyModule_GetState(module.ptr())) = calls.release();
  BindHandles(module);
  BindReductions(module);
  BindGradientStep(module);
  core.attr("calls") = module;
}

}  // namespace hvl::python
