// Memory of the runtime that Python sees through the buffer protocol.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>

namespace hvl::python {

/// A writable block of bytes; alive as long as Python refers to it or to a buffer made from it.
struct Memory {
  std::shared_ptr<const void> owner;
  void* data = nullptr;
  std::size_t bytes = 0;
};

void BindMemory(pybind11::module_& module);

}  // namespace hvl::python
