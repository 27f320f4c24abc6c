#include "python/bind_memory.h"

#include <cstdint>

namespace hvl::python {

namespace py = pybind11;

void BindMemory(py::module_& module) {
  py::class_<Memory>(module, "Memory", py::buffer_protocol(),
                     "A writable block of bytes of the runtime, read through the buffer protocol.\n"
                     "\n"
                     "It stays valid while any object refers to it, also after shutdown().")
      .def_property_readonly(
          "address",
          [](const Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data); },
          "Where the block starts; 0 when it is empty.")
      .def_property_readonly(
          "nbytes", [](const Memory& memory) { return memory.bytes; }, "Size in bytes.")
      .def_buffer([](Memory& memory) {
        return py::buffer_info(static_cast<std::uint8_t*>(memory.data),
                               static_cast<py::ssize_t>(memory.bytes));
      });
}

}  // namespace hvl::python
