#include "python/handle_table.h"

#include <optional>
#include <utility>

namespace hvl::python {

namespace py = pybind11;

std::optional<std::int64_t> NumberOf(PyObject* object) {
  const std::int64_t number = PyLong_Check(object) ? PyLong_AsLongLong(object)
                                                   : PyNumber_AsSsize_t(object, PyExc_IndexError);
  if (number == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    return std::nullopt;
  }
  return number;
}

std::int64_t HandleTable::Add(Unfetched operation) {
  operations_.emplace(next_, std::move(operation));
  return next_++;
}

Unfetched& HandleTable::Find(PyObject* number) {
  const std::optional<std::int64_t> key = NumberOf(number);
  const auto found = key ? operations_.find(*key) : operations_.end();
  if (found != operations_.end()) return found->second;
  PyErr_Format(PyExc_ValueError, "Handle %S was not created or has been cleared.", number);
  throw py::error_already_set();
}

void HandleTable::Forget(std::int64_t number) {
  // What the entry owns may run any Python code when it dies: after the table is in order again.
  const auto node = operations_.extract(number);
}

}  // namespace hvl::python
