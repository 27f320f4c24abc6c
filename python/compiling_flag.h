// Whether Python is being traced and not run: asked once per gradient.
#pragma once

#include <pybind11/pybind11.h>

namespace hvl::python {

/// What a framework's function says. That one reads a variable of its module, as long as Python
/// runs; where it does, the variable is read here, without a call of Python. Needs the GIL.
class CompilingFlag {
 public:
  explicit CompilingFlag(pybind11::object function);

  /// Raises what the function raises.
  bool IsOn() const;

 private:
  pybind11::object function_;
  pybind11::object variables_;  ///< of the function's module; null if it does not read the variable
  pybind11::str name_{"_is_compiling_flag"};
};

}  // namespace hvl::python
