#include "python/bind_config.h"

#include <pybind11/stl.h>

#include <utility>

#include "csrc/config/config.h"
#include "horovodlite/mpi.h"
#include "python/errors.h"

namespace hvl::python {
namespace {

namespace py = pybind11;

py::list Knobs() {
  const config::Config config =
      Unwrap(config::Config::Parse(config::ProcessEnv(), /*warnings=*/nullptr));
  py::list rows;
  for (const config::KnobInfo& knob : config::AllKnobs()) {
    py::dict row;
    row["name"] = knob.env_name;
    row["alias"] = knob.alias;
    row["flag"] = knob.flag;
    row["type"] = knob.type_name;
    row["default"] = knob.default_text;
    row["allowed"] = knob.range_text;
    row["value"] = config::KnobText(config, knob.env_name);
    row["must_agree"] = knob.must_agree;
    row["help"] = knob.help;
    rows.append(std::move(row));
  }
  return rows;
}

}  // namespace

void BindConfig(py::module_& module) {
  module.def("mpi_families", &MpiFamilies, "The kinds of MPI that there are plug-ins for.");
  module.def("mpi_threads_supported", &MpiThreadsSupported,
             "Whether the MPI of this process lets several threads call it at once.");
  module.def("knobs", &Knobs,
             "One dictionary per knob, with the value that the environment gives it now.");
}

}  // namespace hvl::python
