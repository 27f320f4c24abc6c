// An operation that is submitted again and again.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "python/py_session.h"

namespace hvl::python {

/// With everything that does not change worked out. In flight at most once at a time. Needs the
/// GIL.
class Prepared {
 public:
  Prepared(std::shared_ptr<PySession> session, Operation operation, pybind11::object keep)
      : session_(std::move(session)),
        operation_(std::make_shared<const Operation>(std::move(operation))),
        keep_(std::move(keep)) {}

  /// Submits it once more. Without `wake` no thread is woken for it: it starts with the next
  /// operation that is submitted or waited for. With HVL_DEBUG=1 it says where Python is.
  void Start(bool wake);
  /// The same with another input of its only tensor, for this time; `keep` keeps that alive until
  /// the operation has finished.
  void StartFrom(const void* input, const pybind11::object& keep, bool wake);

  /// True when the latest submission has finished well: wait() would do nothing but let go of what
  /// was kept alive, and this does it as well. Never blocks.
  bool HasSucceeded();

  /// Blocks until the latest submission has finished; raises what went wrong.
  void Wait();

 private:
  void NoteSite();

  std::shared_ptr<PySession> session_;          // shared with Python's own reference
  std::shared_ptr<const Operation> operation_;  // shared with its submissions in flight
  pybind11::object keep_;
  std::shared_ptr<Kept> latest_;  // shared with the keep-alive table; null before the first start
};

void BindPrepared(pybind11::module_& module);

}  // namespace hvl::python
