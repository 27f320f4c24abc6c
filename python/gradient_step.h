// How far the gradients of an optimizer have come in a training step. horovodlite/torch/_gradients
// and _slots explain the terms; their classes extend the ones here, which hold what is needed where
// the ordinary case is done in C++: once per gradient, in the middle of backward.
#pragma once

#include <pybind11/pybind11.h>

#include <array>

namespace hvl::python {

/// Objects of Python by enumerator; null stands for None.
template <typename Index>
using Objects = std::array<PyObject*, static_cast<std::size_t>(Index::kCount)>;

/// Base of GradientReducer.
struct StepState {
  PyObject ob_base;
  enum Index { kSession, kCount };
  Objects<Index> objects;
  Py_ssize_t passes_per_step;
  Py_ssize_t unpacked;     ///< slots
  Py_ssize_t quiet_bytes;  ///< submitted since a thread was last woken
  Py_ssize_t started;      ///< units
  double weight;
  char synchronized, keeps_local, has_buckets, is_alone;
};

/// Base of Unit.
struct UnitState {
  PyObject ob_base;
  enum Index {
    kSlots,     ///< a tuple
    kInFlight,  ///< who carries the gradients
    kDense,     ///< who does if they are dense
    kPrepared,  ///< what that one submits, if the slots have buckets
    kCount
  };
  Objects<Index> objects;
  Py_ssize_t unpacked;  ///< slots
};

/// Base of Slot.
struct SlotState {
  PyObject ob_base;
  enum Index {
    kParameter,
    kBucket,     ///< a Bucket, which begins with a tensor and its address
    kView,       ///< the bucket as the parameter's gradient
    kDelivered,  ///< returns the last gradient that was made the parameter's, or None
    kSparse,
    kLoose,
    kStale,
    kCount
  };
  Objects<Index> objects;
  Py_ssize_t nbytes, passes, sparse_dims;
  char used, packed;
};

/// Adds the three classes and the functions that work on them.
void BindGradientStep(pybind11::module_& module);

}  // namespace hvl::python
