#include "python/gradient_step.h"

#include <structmember.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
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
// Larger ones stay where they are if nobody else can get at them: the reduction reads them there,
// which saves writing and reading part of the bytes once more. Smaller ones are copied while they
// are in the cache.
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

#define HVL_OBJECT(State, name, index, flags)                    \
  {name, T_OBJECT,                                               \
   Py_ssize_t{offsetof(State, objects)} +                        \
       Py_ssize_t{State::index} * Py_ssize_t{sizeof(PyObject*)}, \
   flags, nullptr}
#define HVL_NUMBER(State, name, field, type) {name, type, offsetof(State, field), 0, nullptr}

py::object MakeStepType() {
  static PyMemberDef members[] = {
      HVL_OBJECT(StepState, "_session", kSession, 0),
      HVL_OBJECT(StepState, "watch", kWatch, 0),
      HVL_OBJECT(StepState, "_first", kFirst, 0),
      HVL_NUMBER(StepState, "_first_version", first_version, T_PYSSIZET),
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
  static PyMemberDef members[] = {HVL_OBJECT(UnitState, "slots", kSlots, 0),
                                  HVL_OBJECT(UnitState, "in_flight", kInFlight, 0),
                                  HVL_OBJECT(UnitState, "_dense", kDense, 0),
                                  HVL_OBJECT(UnitState, "_prepared", kPrepared, 0),
                                  HVL_NUMBER(UnitState, "_unpacked", unpacked, T_PYSSIZET),
                                  {nullptr, 0, 0, 0, nullptr}};
  return MakeType<UnitState>("horovodlite._core.calls.UnitState",
                             "How far the gradients that travel together have come.", members);
}

py::object MakeSlotType() {
  static PyMemberDef members[] = {HVL_OBJECT(SlotState, "parameter", kParameter, 0),
                                  HVL_OBJECT(SlotState, "unit", kUnit, 0),
                                  HVL_OBJECT(SlotState, "bucket", kBucket, 0),
                                  HVL_OBJECT(SlotState, "_view", kView, 0),
                                  HVL_OBJECT(SlotState, "sparse", kSparse, 0),
                                  HVL_OBJECT(SlotState, "loose", kLoose, 0),
                                  HVL_OBJECT(SlotState, "_stale", kStale, 0),
                                  HVL_NUMBER(SlotState, "nbytes", nbytes, T_PYSSIZET),
                                  HVL_NUMBER(SlotState, "passes", passes, T_PYSSIZET),
                                  HVL_NUMBER(SlotState, "_sparse_dims", sparse_dims, T_PYSSIZET),
                                  HVL_NUMBER(SlotState, "used", used, T_BOOL),
                                  HVL_NUMBER(SlotState, "packed", packed, T_BOOL),
                                  HVL_NUMBER(SlotState, "_shows", shows, T_BOOL),
                                  {nullptr, 0, 0, 0, nullptr}};
  return MakeType<SlotState>("horovodlite._core.calls.SlotState", "How far one gradient has come.",
                             members);
}

py::object MakeHookType() {
  static PyMemberDef members[] = {HVL_OBJECT(HookState, "owner", kOwner, READONLY),
                                  HVL_OBJECT(HookState, "slot", kSlot, READONLY),
                                  {nullptr, 0, 0, 0, nullptr}};
  return MakeType<HookState>("horovodlite._core.calls.HookState",
                             "What a parameter calls when its gradient has come.", members);
}

#undef HVL_OBJECT
#undef HVL_NUMBER

template <typename State>
State& As(const py::object& type, PyObject* object) {
  if (object == nullptr ||
      !PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type.ptr()))) {
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

/// Keeps what does not change about a slot's bucket. Without a bucket that the reader understands,
/// no gradient of the slot is ordinary.
void KeepForm(const TensorReader& reader, SlotState& slot) {
  BucketForm& form = slot.form;
  form.dimensions = -1;
  PyObject* const bucket = slot.objects[SlotState::kBucket];
  dlpack::Tensor tensor{};
  if (IsNone(bucket) || !PyTuple_Check(bucket) || PyTuple_GET_SIZE(bucket) < 2 ||
      !reader.Describe(PyTuple_GET_ITEM(bucket, 0), tensor) ||
      static_cast<std::size_t>(tensor.dimensions) > BucketForm::kMostDimensions) {
    return;
  }
  for (std::int32_t dim = 0; dim < tensor.dimensions; ++dim) {
    form.dimension[static_cast<std::size_t>(dim)] = {tensor.shape[dim], tensor.strides[dim]};
  }
  form.data = tensor.data;
  form.bytes = ByteCount(tensor);
  form.dtype = tensor.dtype;
  form.dimensions = tensor.dimensions;
}

/// Whether a tensor has the bucket's dtype, shape and place of each element.
bool HasForm(const dlpack::Tensor& tensor, const BucketForm& form) {
  if (tensor.dimensions != form.dimensions || tensor.dtype.code != form.dtype.code ||
      tensor.dtype.bits != form.dtype.bits) {
    return false;
  }
  for (std::int32_t dim = 0; dim < tensor.dimensions; ++dim) {
    const auto [extent, stride] = form.dimension[static_cast<std::size_t>(dim)];
    if (tensor.shape[dim] != extent || (extent != 1 && tensor.strides[dim] != stride)) return false;
  }
  return true;
}

/// Whether the parameter still has the form that the bucket was made for.
bool SuitsParameter(const TensorReader& reader, const SlotState& slot) {
  dlpack::Tensor parameter{};
  return reader.Describe(slot.objects[SlotState::kParameter], parameter) &&
         HasForm(parameter, slot.form);
}

/// Whether the view is on the bucket: users can give it other memory, and share_memory() moves what
/// is behind it, and behind the bucket's own tensor.
bool IsViewInPlace(const TensorReader& reader, const SlotState& slot) {
  dlpack::Tensor view{};
  return reader.Describe(slot.objects[SlotState::kView], view) && view.data == slot.form.data;
}

py::object GradientOf(const Calls& calls, const SlotState& slot) {
  PyObject* const gradient =
      PyObject_GetAttr(slot.objects[SlotState::kParameter], calls.grad.ptr());
  if (gradient == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(gradient);
}

Prepared* PreparedOf(const Calls& calls, const UnitState& unit) {
  PyObject* const prepared = unit.objects[UnitState::kPrepared];
  return IsNone(prepared) ? nullptr : ObjectIn<Prepared>(prepared, calls.prepared_type);
}

void ShowBucket(const Calls& calls, const SlotState& slot) {
  if (PyObject_SetAttr(slot.objects[SlotState::kParameter], calls.grad.ptr(),
                       slot.objects[SlotState::kView]) != 0) {
    throw py::error_already_set();
  }
}

/// Whether the operation of the slot's unit reduces this slot's bucket and nothing else.
bool TravelsAlone(const Calls& calls, const SlotState& slot) {
  const auto& unit = As<UnitState>(calls.unit_type, slot.objects[SlotState::kUnit]);
  PyObject* const slots = unit.objects[UnitState::kSlots];
  return slots != nullptr && PyTuple_Check(slots) && PyTuple_GET_SIZE(slots) == 1 &&
         PreparedOf(calls, unit) != nullptr;
}

/// Whether a user's hook comes after ours, and may look at the gradient.
bool HasOtherHooks(const Calls& calls, const SlotState& slot) {
  const auto hooks = py::reinterpret_steal<py::object>(
      PyObject_GetAttr(slot.objects[SlotState::kParameter], calls.gradient_hooks.ptr()));
  if (!hooks) PyErr_Clear();
  return !hooks || !PyDict_Check(hooks.ptr()) || PyDict_GET_SIZE(hooks.ptr()) != 1;
}

/// Where a gradient that is ready to travel is reduced from, if it is not in its bucket. It stays
/// the parameter's gradient until the operation has been submitted, and then nobody but the
/// operation can reach it any more.
struct Source {
  const void* values = nullptr;  ///< null: it is in its bucket
  py::object gradient{};
};

/// Brings an ordinary gradient to where it is reduced: as Slot.pack(). A small one is copied into
/// its bucket, which becomes the parameter's gradient. Nothing when something is unusual; then
/// nothing has changed.
std::optional<Source> Pack(const Calls& calls, const SlotState& slot) {
  PyObject* const view = slot.objects[SlotState::kView];
  const BucketForm& form = slot.form;
  if (slot.sparse_dims != 0 || IsNone(view) || form.dimensions < 0) return std::nullopt;
  const TensorReader& reader = calls.framework->reader;
  dlpack::Tensor gradient{};
  py::object source = GradientOf(calls, slot);
  if (!reader.Describe(source.ptr(), gradient) || !HasForm(gradient, form)) return std::nullopt;
  if (gradient.data == form.data) {
    const bool is_ours = source.ptr() == view && SuitsParameter(reader, slot);
    return is_ours ? std::optional(Source{}) : std::nullopt;
  }
  auto* const target = static_cast<char*>(form.data);
  const auto* const values = static_cast<const char*>(gradient.data);
  const bool overlap = values < target + form.bytes && target < values + form.bytes;
  if (overlap || !slot.shows || !IsViewInPlace(reader, slot) ||
      reader.IsNegativeView(source.ptr())) {
    return std::nullopt;
  }
  if (form.bytes <= kMostCopied) {
    std::memcpy(target, values, form.bytes);
    ShowBucket(calls, slot);
    return Source{};
  }
  if (!TravelsAlone(calls, slot) || HasOtherHooks(calls, slot) ||
      !calls.framework->sole_owner.Owns(source.ptr())) {
    return std::nullopt;
  }
  return Source{values, std::move(source)};
}

/// Submits the operation of a unit whose slots are all packed, `last` from `source`.
void StartUnit(const Calls& calls, UnitState& unit, const SlotState& last, const Source& source,
               bool wake) {
  Prepared* const prepared = PreparedOf(calls, unit);
  const bool dense = prepared != nullptr && AllSlots(calls, unit, [](const SlotState& slot) {
                       return IsNone(slot.objects[SlotState::kSparse]);
                     });
  if (!dense) {
    py::handle(&unit.ob_base).attr(calls.start)(wake);
    return;
  }
  if (source.values == nullptr) {
    prepared->Start(wake);
  } else {
    prepared->StartFrom(source.values, source.gradient, wake);
    ShowBucket(calls, last);
  }
  SetObject(unit.objects[UnitState::kInFlight], unit.objects[UnitState::kDense]);
}

/// Remembers the first gradient of a step as it is, so that somebody who changes gradients while
/// they are reduced can be told. One will do: who clips or scales does it to all.
void RememberFirst(const Calls& calls, StepState& step, const SlotState& slot) {
  PyObject* const view = slot.objects[SlotState::kView];
  if (!IsNone(step.objects[StepState::kFirst]) || IsNone(view)) return;
  const auto version =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(view, calls.version.ptr()));
  step.first_version = version ? PyLong_AsSsize_t(version.ptr()) : -1;
  if (PyErr_Occurred()) return PyErr_Clear();  // it counts no versions
  SetObject(step.objects[StepState::kFirst], view);
}

/// A gradient is where its carrier takes it from. Starts what is complete now.
void CountPacked(const Calls& calls, StepState& step, const SlotState& slot, const Source& source) {
  auto& unit = As<UnitState>(calls.unit_type, slot.objects[SlotState::kUnit]);
  step.quiet_bytes += slot.nbytes;
  RememberFirst(calls, step, slot);
  if (--unit.unpacked == 0) {
    const bool wake = step.quiet_bytes >= kWakeBytes;
    StartUnit(calls, unit, slot, source, wake);
    ++step.started;
    if (wake) step.quiet_bytes = 0;
  }
  if (--step.unpacked == 0) py::handle(&step.ob_base).attr(calls.send_flags)();
}

/// As GradientReducer.accumulated(), for a gradient that is in its parameter. False when something
/// is unusual; then nothing has changed.
bool Accumulate(const Calls& calls, StepState& step, SlotState& slot) {
  if (!calls.framework || !step.has_buckets ||
      CurrentSession(calls).ptr() != step.objects[StepState::kSession]) {
    return false;
  }
  if (slot.packed || slot.passes >= step.passes_per_step) return false;
  const bool ready = !step.keeps_local && slot.passes + 1 == step.passes_per_step && !step.is_alone;
  std::optional<Source> source;
  if (ready) {
    if (step.weight == 1.0) source = Pack(calls, slot);
    if (!source) return false;
  }
  slot.used = 1;
  step.synchronized = 0;
  if (step.keeps_local) return true;
  ++slot.passes;
  if (!ready) return true;
  slot.packed = 1;
  CountPacked(calls, step, slot, *source);
  return true;
}

// --- The functions ----------------------------------------------------------------------------

struct Place {
  StepState& step;
  SlotState& slot;
};

Place PlaceOf(const Calls& calls, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) throw py::type_error("a step and a slot were expected");
  return {As<StepState>(calls.step_type, arguments[0]),
          As<SlotState>(calls.slot_type, arguments[1])};
}

PyObject* Accumulated(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=] {
    const Calls& calls = CallsOf(module);
    const Place place = PlaceOf(calls, arguments, count);
    return PyBool_FromLong(Accumulate(calls, place.step, place.slot));
  });
}

PyObject* Packed(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=]() -> PyObject* {
    const Calls& calls = CallsOf(module);
    const Place place = PlaceOf(calls, arguments, count);
    CountPacked(calls, place.step, place.slot, {});
    Py_RETURN_NONE;
  });
}

PyObject* BucketMade(PyObject* module, PyObject* slot) {
  return Guarded([=]() -> PyObject* {
    const Calls& calls = CallsOf(module);
    auto& state = As<SlotState>(calls.slot_type, slot);
    state.form.dimensions = -1;
    if (calls.framework) KeepForm(calls.framework->reader, state);
    Py_RETURN_NONE;
  });
}

PyObject* BeginStep(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=]() -> PyObject* {
    if (count != 2) throw py::type_error("begin_step() takes a step and its units");
    const Calls& calls = CallsOf(module);
    auto& step = As<StepState>(calls.step_type, arguments[0]);
    step.unpacked = step.quiet_bytes = step.started = 0;
    SetObject(step.objects[StepState::kFirst], nullptr);
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
    const bool all = AllUnits(calls, units, [&calls](const UnitState& unit) {
      if (IsNone(unit.objects[UnitState::kInFlight])) return true;
      Prepared* const prepared = PreparedOf(calls, unit);
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
  if (!slot.used || slot.sparse_dims != 0 || IsNone(view) || slot.form.dimensions < 0 ||
      GradientOf(calls, slot).ptr() != view) {
    return false;
  }
  const TensorReader& reader = calls.framework->reader;
  return IsViewInPlace(reader, slot) && SuitsParameter(reader, slot);
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

// --- Flags ------------------------------------------------------------------------------------

/// Memory as float32 values.
class Floats {
 public:
  /// Raises unless the object has room for so many.
  Floats(PyObject* memory, Py_ssize_t count) {
    if (PyObject_GetBuffer(memory, &buffer_, PyBUF_WRITABLE) != 0) throw py::error_already_set();
    if (buffer_.len < count * Py_ssize_t{sizeof(float)}) {
      PyBuffer_Release(&buffer_);
      throw py::value_error("the memory is too small for the flags");
    }
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() { PyBuffer_Release(&buffer_); }

  float& operator[](Py_ssize_t index) const { return static_cast<float*>(buffer_.buf)[index]; }

 private:
  Py_buffer buffer_{};
};

// What the flag of a used slot says when its gradient is sparse: less than any rounding hides.
constexpr float kUsedSparse = 0.25F;

PyObject* WriteFlags(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=]() -> PyObject* {
    if (count != 3) throw py::type_error("write_flags() takes a step, its slots and memory");
    const Calls& calls = CallsOf(module);
    const auto& step = As<StepState>(calls.step_type, arguments[0]);
    if (!PyList_Check(arguments[1])) throw py::type_error("slots must be a list");
    const Py_ssize_t slots = PyList_GET_SIZE(arguments[1]);
    const Floats flags(arguments[2], 2 * slots + 2);
    bool all_packed = true;
    for (Py_ssize_t i = 0; i < slots; ++i) {
      const auto& slot = As<SlotState>(calls.slot_type, PyList_GET_ITEM(arguments[1], i));
      const float used = slot.sparse_dims == 0 ? 1.0F : kUsedSparse;
      flags[i] = slot.used ? used : 0.0F;
      flags[slots + i] = slot.packed ? 0.0F : 1.0F;
      all_packed = all_packed && slot.packed;
    }
    flags[2 * slots] = step.weight != 1.0 ? 1.0F : 0.0F;
    flags[2 * slots + 1] = all_packed ? 0.0F : 1.0F;
    Py_RETURN_NONE;
  });
}

PyObject* AllOrdinary(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=]() -> PyObject* {
    if (count != 4) throw py::type_error("all_ordinary() takes memory and three numbers");
    const Py_ssize_t slots = PyLong_AsSsize_t(arguments[1]);
    const double ranks = PyFloat_AsDouble(arguments[2]), scale = PyFloat_AsDouble(arguments[3]);
    if (PyErr_Occurred()) throw py::error_already_set();
    const Floats flags(arguments[0], 2 * slots + 2);
    bool ordinary = true;
    for (Py_ssize_t i = 0; i < 2 * slots + 2; ++i) {
      const double wanted = i < slots ? ranks : 0.0;
      ordinary = ordinary && std::abs(double{flags[i]} * scale - wanted) < 0.1;  // but for rounding
    }
    return PyBool_FromLong(ordinary);
  });
}

// --- Hooks ------------------------------------------------------------------------------------

/// As the hook's method `__call__`, for an ordinary gradient. False, and nothing done, else.
bool CallOrdinary(const HookState& hook) {
  PyObject* const module = hook.objects[HookState::kCalls];
  if (module == nullptr) return false;
  const Calls& calls = CallsOf(module);
  auto& step = As<StepState>(calls.step_type, hook.objects[HookState::kOwner]);
  if (!IsNone(step.objects[StepState::kWatch]) || !calls.framework ||
      calls.framework->is_compiling.IsOn()) {
    return false;
  }
  return Accumulate(calls, step, As<SlotState>(calls.slot_type, hook.objects[HookState::kSlot]));
}

PyObject* CallHook(PyObject* self, PyObject* arguments, PyObject* keywords) {
  return Guarded([=]() -> PyObject* {
    const py::object keep = py::reinterpret_borrow<py::object>(self);
    if (keywords == nullptr && PyTuple_GET_SIZE(arguments) == 1 &&
        CallOrdinary(*reinterpret_cast<HookState*>(self))) {
      Py_RETURN_NONE;
    }
    const py::object method = keep.attr("__call__");  // the one in Python
    return PyObject_Call(method.ptr(), arguments, keywords);
  });
}

PyObject* Attach(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  return Guarded([=]() -> PyObject* {
    if (count != 3) throw py::type_error("attach() takes a hook, a step and a slot");
    const Calls& calls = CallsOf(module);
    auto& hook = As<HookState>(calls.hook_type, arguments[0]);
    PlaceOf(calls, arguments + 1, count - 1);
    SetObject(hook.objects[HookState::kCalls], module);
    SetObject(hook.objects[HookState::kOwner], arguments[1]);
    SetObject(hook.objects[HookState::kSlot], arguments[2]);
    Py_RETURN_NONE;
  });
}

PyObject* CallInC(PyObject* module, PyObject* hook_class) {
  return Guarded([=]() -> PyObject* {
    auto* const base = reinterpret_cast<PyTypeObject*>(CallsOf(module).hook_type.ptr());
    auto* const type = reinterpret_cast<PyTypeObject*>(hook_class);
    if (!PyType_Check(hook_class) || !PyType_IsSubtype(type, base) || type == base) {
      throw py::type_error("a class made from HookState was expected");
    }
    type->tp_call = &CallHook;
    return py::reinterpret_borrow<py::object>(hook_class).release().ptr();
  });
}

}  // namespace

void BindGradientStep(py::module_& module) {
  Calls& calls = CallsOf(module.ptr());
  module.attr("StepState") = calls.step_type = MakeStepType();
  module.attr("UnitState") = calls.unit_type = MakeUnitType();
  module.attr("SlotState") = calls.slot_type = MakeSlotType();
  module.attr("HookState") = calls.hook_type = MakeHookType();
  static PyMethodDef methods[] = {
      {"accumulated", AsCFunction(&Accumulated), METH_FASTCALL,
       "accumulated(step: StepState, slot: SlotState, /) -> bool\n\n"
       "Backward has added to parameter.grad. False, and nothing done, if it is not ordinary."},
      {"packed", AsCFunction(&Packed), METH_FASTCALL,
       "packed(step: StepState, slot: SlotState, /) -> None\n\n"
       "A gradient is ready to travel; starts what is complete."},
      {"bucket_made", &BucketMade, METH_O,
       "bucket_made(slot: SlotState, /) -> None\n\n"
       "To be called when slot.bucket has changed: remembers where it is and what form it has."},
      {"attach", AsCFunction(&Attach), METH_FASTCALL,
       "attach(hook: HookState, step: StepState, slot: SlotState, /) -> None\n\n"
       "Tells a hook whose gradient it is for."},
      {"call_in_c", &CallInC, METH_O,
       "call_in_c(hook_class: type, /) -> type\n\n"
       "Calls of its instances deal with ordinary gradients in C, and else call its `__call__`.\n"
       "Who looks at the class, as a tracer does, sees that method only."},
      {"begin_step", AsCFunction(&BeginStep), METH_FASTCALL,
       "begin_step(step: StepState, units: Sequence[UnitState], /) -> None\n\nForgets the last "
       "one."},
      {"write_flags", AsCFunction(&WriteFlags), METH_FASTCALL,
       "write_flags(step: StepState, slots: list[SlotState], memory: Memory, /) -> None\n\n"
       "Says of each slot whether it is used, and whether it is left out; and whether there are\n"
       "weights, and anything left out."},
      {"all_ordinary", AsCFunction(&AllOrdinary), METH_FASTCALL,
       "all_ordinary(memory: Memory, slots: int, ranks: int, scale: float, /) -> bool\n\n"
       "Whether the reduced flags, times `scale`, say that all ranks have used all, with dense\n"
       "gradients, and that there are no weights."},
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
