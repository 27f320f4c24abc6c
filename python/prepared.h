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

  /// True when the latest submission has finished well: wait() would do nothing. Never blocks.
  bool HasSucceeded() const {
    return latest_ != nullptr && latest_->operation.finished() && latest_->operation.Wait().ok();
  }

  /// Blocks until the latest submission has finished; raises what went wrong.
  void Wait();

 private:
  std::shared_ptr<PySession> session_;          // shared with Python's own reference
  std::shared_ptr<const Operation> operation_;  // shared with its submissions in flight
  pybind11::object keep_;
  std::shared_ptr<Kept> latest_;  // shared with the keep-alive table; null before the first start
};

void BindPrepared(pybind11::module_& module);

}  // namespace hvl::python
