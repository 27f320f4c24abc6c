// What the numbers stand for that asynchronous functions return.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "python/keepalive.h"

namespace hvl::python {

/// A submitted operation whose result nobody has fetched yet.
struct Unfetched {
  std::shared_ptr<Kept> kept;
  pybind11::object result;  ///< what synchronize() returns; null when `finish` makes it
  pybind11::object
      finish;  ///< a function of the operation's Handle that waits and gives the result
};

/// Needs the GIL, which also guards the members.
class HandleTable {
 public:
  /// The number of the operation from now on.
  std::int64_t Add(Unfetched operation);
  /// The operation as long as its number is known; raises ValueError otherwise. `number` may be any
  /// object.
  Unfetched& Find(PyObject* number);
  /// The number is unknown afterwards, if it was not already.
  void Forget(std::int64_t number);

 private:
  std::unordered_map<std::int64_t, Unfetched> operations_;
  std::int64_t next_ = 0;
};

/// An index into the table; nothing when the object is none. Leaves no exception.
std::optional<std::int64_t> NumberOf(PyObject* object);

}  // namespace hvl::python
