// Holds the Python objects whose memory operations in flight use. The core never sees Python, so it
// cannot release them; this table does it when Python next enters.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "horovodlite/session.h"

namespace hvl::python {

/// The objects of one operation. Shared by the table and by the Python handle of the operation:
/// who first sees that it is done releases them.
struct Kept {
  Handle operation;
  pybind11::object objects;
};

/// Every method needs the GIL, which also guards the members.
class KeepAlive {
 public:
  /// Keeps `objects` until `operation` is done. Releases the objects of a few finished operations:
  /// more than one per call, so that the table never holds more than twice what is in flight.
  std::shared_ptr<Kept> Add(Handle operation, pybind11::object objects);

  /// Releases everything that is done, whatever that costs; after a shutdown that is everything.
  void ReleaseFinished();

  std::size_t size() const { return entries_.size(); }

 private:
  void ReleaseSome(std::size_t checks);

  std::vector<std::shared_ptr<Kept>> entries_;
  std::size_t cursor_ = 0;  // where the next check starts
};

}  // namespace hvl::python
