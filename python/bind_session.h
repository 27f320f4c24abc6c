// The session as Python sees it, and the operations that are submitted through it.
#pragma once

#include <pybind11/pybind11.h>

namespace hvl::python {

void BindSession(pybind11::module_& module);

}  // namespace hvl::python
