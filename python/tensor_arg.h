// Python's description of an operation, taken apart: plain tuples of numbers, no framework types.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "horovodlite/types.h"

namespace hvl::python {

/// An operation from Python values. `tensors` is a list with one tuple per tensor:
/// (input address, output address, dtype, shape, layout). Checks everything that could make the
/// core read or write wild memory; raises ValueError or TypeError. Needs the GIL.
Operation MakeOperation(int kind, std::string name, const pybind11::list& tensors, int reduce_op,
                        double prescale, double postscale, int root_rank,
                        ProcessSetId process_set = kWorldSet, std::vector<std::int64_t> splits = {},
                        std::string site = {});

}  // namespace hvl::python
