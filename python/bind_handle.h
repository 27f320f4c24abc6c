// A submitted operation as Python sees it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "horovodlite/interrupt.h"
#include "python/keepalive.h"

namespace hvl::python {

/// Blocks until `operation` is done. Needs the GIL and gives it up meanwhile. On Python's main
/// thread signals are served: a handler that raises (Ctrl-C) ends the wait, not the operation.
void WaitUntilDone(Handle& operation);

/// Waits for the operation and lets go of what it uses; raises what went wrong. Needs the GIL.
void Finish(Kept& kept);

/// For calls that wait for peers without a handle, and without the GIL: whether a signal handler
/// has raised. Empty on other threads than Python's main one. Needs the GIL; so does, after such a
/// call, ThrowIfInterrupted.
Interrupted InterruptedByHandler();
/// Raises what the handler has raised.
void ThrowIfInterrupted();

/// What the runtime allocated for a finished operation: a list of (Memory, dtype, shape,
/// first_dims).
pybind11::list GatheredList(const std::vector<GatheredTensor>& gathered);

/// Needs the GIL for everything.
class PyHandle {
 public:
  explicit PyHandle(std::shared_ptr<Kept> kept) : kept_(std::move(kept)) {}

  bool Done() const { return kept_->operation.done(); }
  const std::shared_ptr<Kept>& kept() const { return kept_; }
  /// Blocks; releases the operation's objects; raises what went wrong.
  void Wait();
  /// As Wait; the results that the runtime allocated.
  pybind11::list WaitGathered();

 private:
  std::shared_ptr<Kept> kept_;  // shared with the keep-alive table
};

void BindHandle(pybind11::module_& module);

}  // namespace hvl::python
