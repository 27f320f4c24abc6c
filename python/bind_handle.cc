#include "python/bind_handle.h"

#include <span>
#include <utility>
#include <vector>

#include "python/bind_memory.h"
#include "python/errors.h"

namespace hvl::python {
namespace {

namespace py = pybind11;

// Python runs signal handlers on its main thread only, between two instructions, and a wait is one
// instruction.
bool OnMainThread() {
  static const unsigned long main_thread =  // the main thread of a process stays the same
      py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  return PyThread_get_thread_ident() == main_thread;
}

}  // namespace

void WaitUntilDone(Handle& operation) {
  if (operation.finished()) return;
  const Interrupted interrupted = InterruptedByHandler();
  {
    const py::gil_scoped_release unlocked;
    static_cast<void>(operation.Wait(interrupted));  // the caller asks again for the outcome
  }
  ThrowIfInterrupted();
}

Interrupted InterruptedByHandler() {
  if (!OnMainThread()) return {};
  return [] {
    const py::gil_scoped_acquire locked;
    return PyErr_CheckSignals() != 0;
  };
}

void ThrowIfInterrupted() {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

py::list GatheredList(const std::vector<GatheredTensor>& gathered) {
  py::list list;
  for (const GatheredTensor& tensor : gathered) {
    const auto count = static_cast<std::size_t>(ElementCount(tensor.shape));
    Memory memory{tensor.owner, tensor.data, count * DTypeBytes(tensor.dtype)};
    const auto as_tuple = [](std::span<const std::int64_t> numbers) {
      py::tuple tuple(numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) tuple[i] = numbers[i];
      return tuple;
    };
    list.append(py::make_tuple(std::move(memory), static_cast<int>(tensor.dtype),
                               as_tuple(tensor.shape), as_tuple(tensor.first_dims)));
  }
  return list;
}

void Finish(Kept& kept) {
  WaitUntilDone(kept.operation);
  const py::object objects = std::move(kept.objects);
  ThrowIfError(kept.operation.Wait());
}

void PyHandle::Wait() { Finish(*kept_); }

py::list PyHandle::WaitGathered() {
  Wait();
  return GatheredList(kept_->operation.gathered());
}

void BindHandle(py::module_& module) {
  py::class_<PyHandle>(module, "Handle", "A submitted operation.")
      .def("done", &PyHandle::Done, "True once the operation has finished. Never blocks.")
      .def("wait", &PyHandle::Wait,
           "Blocks, without the GIL, until the operation has finished; raises what went wrong.")
      .def("wait_gathered", &PyHandle::WaitGathered,
           "As wait(): what the runtime allocated, a list of (memory, dtype, shape, first_dims).");
}

}  // namespace hvl::python
