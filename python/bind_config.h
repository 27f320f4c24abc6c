// The read-only view of the knobs.
#pragma once

#include <pybind11/pybind11.h>

namespace hvl::python {

void BindConfig(pybind11::module_& module);

}  // namespace hvl::python
