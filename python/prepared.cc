#include "python/prepared.h"

#include <string>
#include <utility>

#include "python/bind_handle.h"
#include "python/tensor_arg.h"

namespace hvl::python {

namespace py = pybind11;

void Prepared::NoteSite() {
  if (!session_->debug()) return;
  const py::object caller_site = py::module_::import("horovodlite._sites").attr("caller_site");
  Operation here = *operation_;
  here.site = caller_site().cast<std::string>();
  operation_ = std::make_shared<const Operation>(std::move(here));
}

void Prepared::Start(bool wake) {
  NoteSite();
  latest_ = session_->Start(operation_, keep_, wake);
}

void Prepared::StartFrom(const void* input, const py::object& keep, bool wake) {
  NoteSite();
  Operation operation = *operation_;
  operation.tensors.at(0).input = input;
  latest_ = session_->Start(std::move(operation), py::make_tuple(keep_, keep), wake);
}

bool Prepared::HasSucceeded() {
  if (latest_ == nullptr || !latest_->operation.finished()) return false;
  const py::object kept = std::move(latest_->objects);  // its end may run any code
  return latest_->operation.Wait().ok();
}

void Prepared::Wait() {
  if (latest_ == nullptr) throw py::value_error("the operation has not been started");
  PyHandle(latest_).Wait();
}

void BindPrepared(py::module_& module) {
  py::class_<Prepared>(module, "Prepared",
                       "An operation on fixed memory that is submitted again and again.")
      .def(py::init([](std::shared_ptr<PySession> session, int kind, std::string name,
                       const py::list& tensors, int reduce_op, double prescale, double postscale,
                       int root_rank, py::object keep, ProcessSetId process_set) {
             return Prepared(std::move(session),
                             MakeOperation(kind, std::move(name), tensors, reduce_op, prescale,
                                           postscale, root_rank, process_set),
                             std::move(keep));
           }),
           py::arg("session"), py::arg("kind"), py::arg("name"), py::arg("tensors"),
           py::arg("reduce_op") = 0, py::arg("prescale") = 1.0, py::arg("postscale") = 1.0,
           py::arg("root_rank") = 0, py::arg("keep") = py::none(),
           py::arg("process_set") = kWorldSet)
      .def("start", &Prepared::Start, py::arg("wake") = true,
           "Submits the operation once more. Never blocks on a peer. Without `wake` no thread is\n"
           "woken for it: it starts with the next operation that is submitted or waited for.")
      .def("wait", &Prepared::Wait,
           "Blocks, without the GIL, until it has finished; raises what went wrong.");
}

}  // namespace hvl::python
