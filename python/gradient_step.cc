#include "python/gradient_step.h"

#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "python/calls.h"
#include "python/prepared.h"
#include "python/tensor_reader.h"

namespace hvl::python {
namespace {

namespace py = pybind11;

// Small gradients are submitted without waking the thread that negotiates, until so much has
// gathered that reducing it takes longer than the waking (about 10 us).
constexpr Py_ssize_t kWakeBytes = Py_ssize_t{256} << 10;
// Larger ones are copied by the framework, which may use several threads for it.
constexpr std::size_t kMostCopied = std::size_t{1} << 20;

// --- The classes ------------------------------------------------------------------------------

template <typename State>
int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (PyObject* object : reinterpret_cast<State*>(self)->objects) Py_VISIT(object);
  return 0;
}

template <typename State>
int Clear(PyObject* self) {
  for (PyObject*& object : reinterpret_cast<State*>(self)->objects) Py_CLEAR(object);
  return 0;
}

template <typename State>
void Dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Clear<State>(self);
  type->tp_free(self);
  Py_DECREF(type);
}

template <typename State>
py::object MakeType(const char* name, const char* doc, PyMemberDef* members) {
  PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&Traverse<State>)},
                         {Py_tp_clear, reinterpret_cast<void*>(&Clear<State>)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(&Dealloc<State>)},
                         {Py_tp_members, members},
                         {Py_tp_doc, const_cast<char*>(doc)},
                         {0, nullptr}};
  PyType_Spec spec{name, sizeof(State), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(type);
}

#define HVL_OBJECT(State, name, index)                           \
  {name, T_OBJECT,                                               \
   Py_ssize_t{offsetof(State, objects)} +                        \
       Py_ssize_t{State::index} * Py_ssize_t{sizeof(PyObject*)}, \
   0, nullptr}
#define HVL_NUMBER(State, name, field, type) {name, type, offsetof(State, field), 0, nullptr}

py::object MakeStepType() {
  static PyMemberDef members[] = {
      HVL_OBJECT(StepState, "_session", kSession),
      HVL_NUMBER(StepState, "passes_per_step", passes_per_step, T_PYSSIZET),
      HVL_NUMBER(StepState, "_unpacked", unpacked, T_PYSSIZET),
      HVL_NUMBER(StepState, "_started", started, T_PYSSIZET),
      HVL_NUMBER(StepState, "_weight", weight, T_DOUBLE),
      HVL_NUMBER(StepState, "synchronized", synchronized, T_BOOL),
      HVL_NUMBER(StepState, "keeps_local", keeps_local, T_BOOL),
      HVL_NUMBER(StepState, "_has_buckets", has_buckets, T_BOOL),
      HVL_NUMBER(StepState, "_is_alone", is_alone, T_BOOL),
      {nullptr, 0, 0, 0, nullptr}};
  return MakeType<StepState>("horovodlite._core.calls.StepState",
                             "How far the gradients of an optimizer have come.", members);
}

py::object MakeUnitType() {
  static PyMemberDef members[] = {HVL_OBJECT(UnitState, "slots", kSlots),
                                  HVL_OBJECT(UnitState, "in_flight", kInFlight),
                                  HVL_OBJECT(UnitState, "_dense", kDense),
                                  HVL_OBJECT(UnitState, "_prepared", kPrepared),
                                  {nullptr, 0, 0, 0, nullptr}};
  return MakeType<UnitState>("horovodlite._core.calls.UnitState",
                             "How far the gradients that travel together have come.", members);
}

py::object MakeSlotType() {
  static PyMemberDef members[] = {HVL_OBJECT(SlotState, "parameter", kParameter),
                                  HVL_OBJECT(SlotState, "bucket", kBucket),
                                  HVL_OBJECT(SlotState, "_view", kView),
                                  HVL_OBJECT(SlotState, "_delivered", kDelivered),
                                  HVL_OBJECT(SlotState, "sparse", kSparse),
                                  HVL_OBJECT(SlotState, "loose", kLoose),
                                  HVL_OBJECT(SlotState, "_stale", kStale),
                                  HVL_NUMBER(SlotState, "nbytes", nbytes, T_PYSSIZET),
                                  HVL_NUMBER(SlotState, "passes", passes, T_PYSSIZET),
                                  HVL_NUMBER(SlotState, "_sparse_dims", sparse_dims, T_PYSSIZET),
                                  HVL_NUMBER(SlotState, "used", used, T_BOOL),
                                  HVL_NUMBER(SlotState, "packed", packed, T_BOOL),
                                  {nullptr, 0, 0, 0, nullptr}};
  return MakeType<SlotState>("horovodlite._core.calls.SlotState", "How far one gradient has come.",
                             members);
}

#undef HVL_OBJECT
#undef HVL_NUMBER

template <typename State>
State& As(const py::object& type, PyObject* object) {
  if (!PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type.ptr()))) {
    throw py::type_error("an object of another class was expected");
  }
  return *reinterpret_cast<State*>(object);
}

bool IsNone(PyObject* object) { return object == nullptr || object == Py_None; }

void SetObject(PyObject*& place, PyObject* object) {
  Py_XINCREF(object);
  PyObject* const before = std::exchange(place, object);
  Py_XDECREF(before);  // last: it may run any code
}

/// Calls `visit` with each slot of the unit until it returns false.
template <typename Visit>
bool AllSlots(const Calls& calls, const UnitState& unit, Visit visit) {
  PyObject* const slots = unit.objects[UnitState::kSlots];
  if (slots == nullptr || !PyTuple_Check(slots)) throw py::type_error("slots must be a tuple");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(slots); ++i) {
    if (!visit(As<SlotState>(calls.slot_type, PyTuple_GET_ITEM(slots, i)))) return false;
  }
  return true;
}

/// Calls `visit` with each unit of the list until it returns false.
template <typename Visit>
bool AllUnits(const Calls& calls, PyObject* units, Visit visit) {
  if (!PyList_Check(units)) throw py::type_error("units must be a list");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(units); ++i) {
    const auto unit = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(units, i));
    if (!visit(As<UnitState>(calls.unit_type, unit.ptr()))) return false;
  }
  return true;
}

// --- Packing ----------------------------------------------------------------------------------

/// The memory of a slot's bucket if it is where it was made, and still suits the parameter.
bool ReadBucket(const TensorReader& reader, const SlotState& slot, dlpack::Tensor& bucket) {
  PyObject* const tuple = slot.objects[SlotState::kBucket];
  if (IsNone(tuple) || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) < 2) return false;
  if (!reader.Describe(PyTuple_GET_ITEM(tuple, 0), bucket)) return false;
  const void* const address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(tuple, 1));
  if (address == nullptr && PyErr_Occurred()) throw py::error_already_set();
  dlpack::Tensor parameter{};
  return bucket.data == address &&
         reader.Describe(slot.objects[SlotState::kParameter], parameter) &&
         HaveOneForm(bucket, parameter);
}

py::object GradientOf(const Calls& calls, const SlotState& slot) {
  PyObject* const gradient =
      PyObject_GetAttr(slot.objects[SlotState::kParameter], calls.grad.ptr());
  if (gradient == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(gradient);
}

bool WasDelivered(const SlotState& slot, PyObject* gradient) {
  const auto latest =
      py::reinterpret_steal<py::object>(PyObject_CallNoArgs(slot.objects[SlotState::kDelivered]));
  if (!latest) throw py::error_already_set();
  return latest.ptr() == gradient;
}

/// Brings an ordinary gradient into its bucket and makes the bucket the parameter's gradient: as
/// Slot.pack(). False when something is unusual; then nothing has changed.
bool Pack(const Calls& calls, const SlotState& slot) {
  PyObject* const view = slot.objects[SlotState::kView];
  if (slot.sparse_dims != 0 || IsNone(view)) return false;
  const TensorReader& reader = calls.framework->reader;
  dlpack::Tensor bucket{}, gradient{}, shown{};
  if (!ReadBucket(reader, slot, bucket)) return false;
  const py::object source = GradientOf(calls, slot);
  if (!reader.Describe(source.ptr(), gradient) || !HaveOneForm(bucket, gradient)) return false;
  if (gradient.data == bucket.data) return source.ptr() == view;
  const std::size_t bytes = ByteCount(bucket);
  auto* const target = static_cast<char*>(bucket.data);
  const auto* const values = static_cast<const char*>(gradient.data);
  const bool overlap = values < target + bytes && target < values + bytes;
  if (bytes > kMostCopied || overlap || !WasDelivered(slot, view) ||
      !reader.Describe(view, shown) || shown.data != bucket.data ||
      reader.IsNegativeView(source.ptr())) {
    return false;
  }
  std::memcpy(target, values, bytes);
  if (PyObject_SetAttr(slot.objects[SlotState::kParameter], calls.grad.ptr(), view) != 0) {
    throw py::error_already_set();
  }
  return true;
}

Prepared* PreparedOf(const UnitState& unit) {
  PyObject* const prepared = unit.objects[UnitState::kPrepared];
  return IsNone(prepared) ? nullptr : py::handle(prepared).cast<Prepared*>();
}

/// Submits the operation of a unit whose slots are all packed.
void StartUnit(const Calls& calls, UnitState& unit, bool wake) {
  Prepared* const prepared = PreparedOf(unit);
  const bool dense = prepared != nullptr && AllSlots(calls, unit, [](const SlotState& slot) {
                       return IsNone(slot.objects[SlotState::kSparse]);
                     });
  if (!dense) {
    py::handle(&unit.ob_base).attr(calls.start)(wake);
    return;
  }
  prepared->Start(wake);
  SetObject(unit.objects[UnitState::kInFlight], unit.objects[UnitState::kDense]);
}

/// A gradient is where its carrier takes it from. Starts what is complete now.
void CountPacked(const Calls& calls, StepState& step, UnitState& unit, const SlotState& slot) {
  step.quiet_bytes += slot.nbytes;
  if (--unit.unpacked == 0) {
    const bool wake = step.quiet_bytes >= kWakeBytes;
    StartUnit(calls, unit, wake);
    ++step.started;
    if (wake) step.quiet_bytes = 0;
  }
  if (--step.unpacked == 0) py::handle(&step.ob_base).attr(calls.send_flags)();
}

/// As GradientReducer.accumulated(), for a gradient that is in its parameter. False when something
/// is unusual; then nothing has changed.
bool Accumulate(const Calls& calls, StepState& step, UnitState& unit, SlotState& slot) {
  if (!calls.framework || !step.has_buckets ||
      CurrentSession(calls).ptr() != step.objects[StepState::kSession]) {
    return false;
  }
  if (slot.packed || slot.passes >= step.passes_per_step) return false;
  const bool ready = !step.keeps_local && slot.passes + 1 == step.passes_per_step && !step.is_alone;
  if (ready && (step.weight != 1.0 || !Pack(calls, slot))) return false;
  slot.used = 1;
  step.synchronized = 0;
  if (step.keeps_local) return true;
  ++slot.passes;
  if (!ready) return true;
  slot.packed = 1;
  CountPacked(calls, step, unit, slot);
  return true;
}

// --- The functions ----------------------------------------------------------------------------

struct Place {
  StepState& step;
  UnitState& unit;
  SlotState& slot;
};

Place PlaceOf(const Calls& calls, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) throw py::type_error("a step, a unit and a slot were expected");
  return {As<StepState>(calls.step_type, arguments[0]),
          As<UnitState>(calls.unit_type, arguments[1]),
          As<SlotState>(calls.slot_type, arguments[2])};
}

PyObject* Accumulated(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=] {
    const Calls& calls = CallsOf(module);
    const Place place = PlaceOf(calls, arguments, count);
    return PyBool_FromLong(Accumulate(calls, place.step, place.unit, place.slot));
  });
}

PyObject* Packed(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=]() -> PyObject* {
    const Calls& calls = CallsOf(module);
    const Place place = PlaceOf(calls, arguments, count);
    CountPacked(calls, place.step, place.unit, place.slot);
    Py_RETURN_NONE;
  });
}

PyObject* BeginStep(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=]() -> PyObject* {
    if (count != 2) throw py::type_error("begin_step() takes a step and its units");
    const Calls& calls = CallsOf(module);
    auto& step = As<StepState>(calls.step_type, arguments[0]);
    step.unpacked = step.quiet_bytes = step.started = 0;
    AllUnits(calls, arguments[1], [&](UnitState& unit) {
      unit.unpacked = 0;
      SetObject(unit.objects[UnitState::kInFlight], nullptr);
      return AllSlots(calls, unit, [&](SlotState& slot) {
        ++step.unpacked;
        ++unit.unpacked;
        slot.used = slot.packed = 0;
        slot.passes = 0;
        for (const auto index : {SlotState::kSparse, SlotState::kLoose, SlotState::kStale}) {
          SetObject(slot.objects[index], nullptr);
        }
        return true;
      });
    });
    Py_RETURN_NONE;
  });
}

PyObject* WaitUnits(PyObject* module, PyObject* units) {
  PyObject* const result = Guarded([=] {
    const Calls& calls = CallsOf(module);
    const bool all = AllUnits(calls, units, [](const UnitState& unit) {
      if (IsNone(unit.objects[UnitState::kInFlight])) return true;
      Prepared* const prepared = PreparedOf(unit);
      if (unit.objects[UnitState::kInFlight] != unit.objects[UnitState::kDense] ||
          prepared == nullptr) {
        return false;
      }
      if (!prepared->HasSucceeded()) prepared->Wait();
      return true;
    });
    return PyBool_FromLong(all);
  });
  if (result != nullptr || !PyErr_ExceptionMatches(PyExc_Exception)) return result;
  PyErr_Clear();  // whoever waits for each of them meets it again
  Py_RETURN_FALSE;
}

/// The parameter's gradient is the bucket, and the bucket is what was reduced.
bool IsDelivered(const Calls& calls, const SlotState& slot) {
  PyObject* const view = slot.objects[SlotState::kView];
  if (!slot.used || IsNone(view) || GradientOf(calls, slot).ptr() != view) return false;
  dlpack::Tensor bucket{}, shown{};
  const TensorReader& reader = calls.framework->reader;
  return ReadBucket(reader, slot, bucket) && reader.Describe(view, shown) &&
         shown.data == bucket.data && slot.sparse_dims == 0;
}

PyObject* Undelivered(PyObject* module, PyObject* units) {
  return Guarded([=] {
    const Calls& calls = CallsOf(module);
    py::list left;
    AllUnits(calls, units, [&](UnitState& unit) {
      PyObject* const carrier = unit.objects[UnitState::kInFlight];
      if (IsNone(carrier)) return true;
      const bool delivered =
          carrier == unit.objects[UnitState::kDense] &&
          !IsNone(unit.objects[UnitState::kPrepared]) &&
          AllSlots(calls, unit, [&](const SlotState& slot) { return IsDelivered(calls, slot); });
      if (!delivered) left.append(py::handle(&unit.ob_base));
      return true;
    });
    return left.release().ptr();
  });
}

}  // namespace

void BindGradientStep(py::module_& module) {
  Calls& calls = CallsOf(module.ptr());
  module.attr("StepState") = calls.step_type = MakeStepType();
  module.attr("UnitState") = calls.unit_type = MakeUnitType();
  module.attr("SlotState") = calls.slot_type = MakeSlotType();
  static PyMethodDef methods[] = {
      {"accumulated", AsCFunction(&Accumulated), METH_FASTCALL,
       "accumulated(step: StepState, unit: UnitState, slot: SlotState, /) -> bool\n\n"
       "Backward has added to parameter.grad. False, and nothing done, if it is not ordinary."},
      {"packed", AsCFunction(&Packed), METH_FASTCALL,
       "packed(step: StepState, unit: UnitState, slot: SlotState, /) -> None\n\n"
       "A gradient is ready to travel; starts what is complete."},
      {"begin_step", AsCFunction(&BeginStep), METH_FASTCALL,
       "begin_step(step: StepState, units: Sequence[UnitState], /) -> None\n\nForgets the last "
       "one."},
      {"wait_units", &WaitUnits, METH_O,
       "wait_units(units: Sequence[UnitState], /) -> bool\n\n"
       "Waits for all that are in flight. False when each has to be waited for by itself."},
      {"undelivered", &Undelivered, METH_O,
       "undelivered(units: Sequence[UnitState], /) -> list[Any]\n\n"
       "Those in flight whose reduced gradients are not in their parameters already."},
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(module.ptr(), methods) != 0) throw py::error_already_set();
}

}  // namespace hvl::python
