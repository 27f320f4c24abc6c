// Whether memory that Python objects share could be touched by anybody but its owner.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace hvl::python {

/// Tells of a parameter's gradient whether anything but the parameter refers to the tensor or to
/// its memory: another variable of Python, a graph, a view, the tensor that was passed to
/// backward(), or another parameter's gradient. What is counted for a gradient that is known to be
/// its parameter's alone is the measure, because how much a framework counts for itself differs
/// between its versions. Needs the GIL.
class SoleOwner {
 public:
  /// `parameter` has a gradient that nobody else refers to. `memory_uses` counts the references to
  /// a tensor's memory, given its address; None = not known, and then nobody counts as sole owner.
  SoleOwner(const pybind11::object& parameter, pybind11::object memory_uses);

  /// Requires that the caller has one reference, and one is the parameter's. False, and no
  /// exception, when it cannot be told.
  bool Owns(PyObject* gradient) const;

 private:
  struct Uses {
    Py_ssize_t object = 0;
    long tensor = 0, memory = 0;
    bool operator==(const Uses&) const = default;
  };
  std::optional<Uses> Count(PyObject* gradient) const;

  pybind11::object memory_uses_;
  pybind11::str use_count_{"_use_count"}, storage_{"untyped_storage"}, address_{"_cdata"};
  std::optional<Uses> sole_;
};

}  // namespace hvl::python
