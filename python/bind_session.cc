#include "python/bind_session.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "horovodlite/session.h"
#include "python/bind_handle.h"
#include "python/prepared.h"
#include "python/py_session.h"
#include "python/tensor_arg.h"

namespace hvl::python {
namespace {

namespace py = pybind11;

template <auto Method>
auto Operate() {
  return [](PySession& session, int kind, std::string name, const py::list& tensors, int reduce_op,
            double prescale, double postscale, int root_rank, py::object keep,
            ProcessSetId process_set, std::vector<std::int64_t> splits, std::string site) {
    return (session.*Method)(
        MakeOperation(kind, std::move(name), tensors, reduce_op, prescale, postscale, root_rank,
                      process_set, std::move(splits), std::move(site)),
        std::move(keep));
  };
}

}  // namespace

void BindSession(py::module_& module) {
  const auto world_field = [](auto World::* field) {
    return [field](const PySession& session) { return session.world().*field; };
  };
  py::class_<PySession, std::shared_ptr<PySession>>(module, "Session",
                                                    "One rank's membership in a world.")
      .def_static("create", &PySession::Create, py::arg("ranks") = std::vector<int>(),
                  "Joins the world that the environment describes, or one of some of its ranks.\n"
                  "Collective; blocks.")
      .def_property_readonly("rank", world_field(&World::rank))
      .def_property_readonly("size", world_field(&World::size))
      .def_property_readonly("local_rank", world_field(&World::local_rank))
      .def_property_readonly("local_size", world_field(&World::local_size))
      .def_property_readonly("cross_rank", world_field(&World::cross_rank))
      .def_property_readonly("cross_size", world_field(&World::cross_size))
      .def_property_readonly("generation", world_field(&World::generation))
      .def_property_readonly("data_plane", &PySession::data_plane,
                             "What carries the tensors: local, tcp, mpi or another one.")
      .def("submit", Operate<&PySession::Submit>(), py::arg("kind"), py::arg("name"),
           py::arg("tensors"), py::arg("reduce_op") = 0, py::arg("prescale") = 1.0,
           py::arg("postscale") = 1.0, py::arg("root_rank") = 0, py::arg("keep") = py::none(),
           py::arg("process_set") = kWorldSet, py::arg("splits") = std::vector<std::int64_t>(),
           py::arg("site") = "",
           "Starts an operation; `keep` stays alive until it is done. Never blocks on a peer.")
      .def("run", Operate<&PySession::Run>(), py::arg("kind"), py::arg("name"), py::arg("tensors"),
           py::arg("reduce_op") = 0, py::arg("prescale") = 1.0, py::arg("postscale") = 1.0,
           py::arg("root_rank") = 0, py::arg("keep") = py::none(),
           py::arg("process_set") = kWorldSet, py::arg("splits") = std::vector<std::int64_t>(),
           py::arg("site") = "",
           "Submits and waits; what the runtime allocated, as Handle.wait_gathered().")
      .def("add_process_set", &PySession::AddProcessSet, py::arg("ranks"),
           "The id of a new group of ranks. Collective over the world; blocks.")
      .def("remove_process_set", &PySession::RemoveProcessSet, py::arg("process_set"),
           "Ends it. Collective over the world; blocks.")
      .def("process_set_ranks", &PySession::ProcessSetRanks, py::arg("process_set"),
           "Its ranks of the world, ascending. Local.")
      .def_property_readonly("checks_sites", &PySession::checks_sites,
                             "Whether unnamed operations should say where they come from.")
      .def_property_readonly("debug", &PySession::debug,
                             "Whether all operations should say where they come from.")
      .def("allocate", &PySession::Allocate, py::arg("nbytes"),
           "Zero-filled memory that the data plane reduces without copies. Local.")
      .def("shutdown", &PySession::Shutdown, "Leaves the world. Idempotent.")
      .def_property_readonly("healthy", &PySession::Healthy,
                             "False once the session has ended, for whatever reason.")
      .def("counters", &PySession::Counters, "Monotone counters since create().")
      .def("start_timeline", &PySession::StartTimeline, py::arg("path"), py::arg("mark_cycles"),
           "Starts writing a Chrome-JSON timeline of this rank.")
      .def("stop_timeline", &PySession::StopTimeline, "Ends it.");
  BindPrepared(module);
}

}  // namespace hvl::python
