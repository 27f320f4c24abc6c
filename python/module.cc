// The Python module horovodlite._core: translates arguments and errors, holds the GIL's rules, and
// keeps tensors alive. Nothing in it is linked to torch; nothing in the core knows Python.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>

#include "horovodlite/types.h"
#include "python/bind_config.h"
#include "python/bind_handle.h"
#include "python/bind_memory.h"
#include "python/bind_session.h"
#include "python/calls.h"

namespace hvl::python {
namespace {

namespace py = pybind11;

// The numbers of the vocabulary, by name: the same lists that the core is made from.
void BindVocabulary(py::module_& module) {
  py::dict dtypes;
#define HVL_X(enumerator, value, name, bytes) dtypes[name] = value;
  HVL_DTYPES(HVL_X)
#undef HVL_X
  module.attr("DTYPES") = dtypes;
  for (const auto& [name, kind] :
       {std::pair{"ALLREDUCE", OpKind::kAllreduce}, std::pair{"ALLGATHER", OpKind::kAllgather},
        std::pair{"BROADCAST", OpKind::kBroadcast}, std::pair{"BARRIER", OpKind::kBarrier},
        std::pair{"REDUCESCATTER", OpKind::kReducescatter},
        std::pair{"ALLTOALL", OpKind::kAlltoall}, std::pair{"JOIN", OpKind::kJoin}}) {
    module.attr(name) = static_cast<int>(kind);
  }
  for (const auto& [name, op] :
       {std::pair{"AVERAGE", ReduceOp::kAverage}, std::pair{"SUM", ReduceOp::kSum},
        std::pair{"ADASUM", ReduceOp::kAdasum}, std::pair{"MIN", ReduceOp::kMin},
        std::pair{"MAX", ReduceOp::kMax}, std::pair{"PRODUCT", ReduceOp::kProduct}}) {
    module.attr(name) = static_cast<int>(op);
  }
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled part of horovodlite; use horovodlite.torch instead.";
  module.attr("VERSION") = HVL_VERSION;
  BindVocabulary(module);
  module.def(
      "pair_set",
      [](int from, int to) {
        if (from == to || std::min(from, to) < 0 || std::max(from, to) >= kMostPairRanks) {
          throw py::value_error(std::to_string(from) + " and " + std::to_string(to) +
                                " are not two ranks that can send to each other");
        }
        return PairSet({from, to});
      },
      py::arg("source"), py::arg("target"), "The process set for what one rank sends to another.");
  BindMemory(module);
  BindHandle(module);
  BindSession(module);
  BindConfig(module);
  BindCalls(module);
}

}  // namespace hvl::python
