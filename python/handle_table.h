// What the numbers stand for that asynchronous functions return.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "python/keepalive.h"

namespace hvl::python {

/// A submitted operation whose result nobody has fetched yet.
struct Unfetched {
  std::shared_ptr<Kept> kept;
  pybind11::object result;  ///< what synchronize() returns; null when `finish` makes it
  pybind11::object
      finish;  ///< a function of the operation's Handle that waits and gives the result
};

/// A number is a place in a vector (low half) and the count of its uses (high half), so that
/// finding an operation is an index, and numbers are not used twice. Needs the GIL, which also
/// guards the members.
class HandleTable {
 public:
  /// The number of the operation from now on.
  std::int64_t Add(Unfetched operation);
  /// The operation as long as its number is known; raises ValueError otherwise. `number` may be any
  /// object.
  Unfetched& Find(PyObject* number);
  /// The number is unknown afterwards, if it was not already. Whoever drops the result may have any
  /// Python code run.
  Unfetched Take(PyObject* number);
  /// The same, but nothing happens unless the operation is done and its result is there.
  Unfetched TakeDone(PyObject* number);

 private:
  struct Place {
    Unfetched operation;  ///< without `kept`: free
    std::uint32_t uses = 0;
  };

  /// Null when the number is unknown.
  Place* PlaceOf(PyObject* number);
  Unfetched Take(Place& place);

  std::vector<Place> places_;
  std::vector<std::uint32_t> free_;
};

}  // namespace hvl::python
