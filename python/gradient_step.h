// How far the gradients of an optimizer have come in a training step. horovodlite/torch/_gradients
// and _slots explain the terms; their classes extend the ones here, which hold what is needed where
// the ordinary case is done in C++: once per gradient, in the middle of backward.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "python/dlpack.h"

namespace hvl::python {

/// Objects of Python by enumerator; null stands for None.
template <typename Index>
using Objects = std::array<PyObject*, static_cast<std::size_t>(Index::kCount)>;

/// Base of GradientReducer.
struct StepState {
  PyObject ob_base;
  enum Index {
    kSession,
    kWatch,  ///< who looks at when gradients arrive, or None
    kFirst,  ///< the view of the slot that was packed first
    kCount
  };
  Objects<Index> objects;
  Py_ssize_t passes_per_step;
  Py_ssize_t unpacked;       ///< slots
  Py_ssize_t quiet_bytes;    ///< submitted since a thread was last woken
  Py_ssize_t started;        ///< units
  Py_ssize_t first_version;  ///< of that view then: how often anybody had written to it
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

/// Where a bucket was made, and for what. Nobody but the runtime has its tensor, so this stays
/// true.
struct BucketForm {
  struct Dimension {
    std::int64_t extent, stride;
  };
  static constexpr std::size_t kMostDimensions = 6;  ///< of others the ordinary way knows nothing

  void* data;
  std::size_t bytes;
  dlpack::DataType dtype;
  std::int32_t dimensions;  ///< negative while there is no bucket
  std::array<Dimension, kMostDimensions> dimension;
};

/// Base of Slot.
struct SlotState {
  PyObject ob_base;
  enum Index {
    kParameter,
    kUnit,
    kBucket,  ///< a Bucket, which begins with a tensor and its address
    kView,    ///< the bucket as the parameter's gradient
    kSparse,
    kLoose,
    kStale,
    kCount
  };
  Objects<Index> objects;
  Py_ssize_t nbytes, passes, sparse_dims;
  char used, packed;
  char shows;  ///< the view is the last gradient that was made the parameter's
  BucketForm form;
};

/// Base of Hook.
struct HookState {
  PyObject ob_base;
  enum Index {
    kOwner,  ///< a GradientReducer
    kSlot,
    kCalls,  ///< the module `calls`
    kCount
  };
  Objects<Index> objects;
};

/// Adds the classes and the functions that work on them.
void BindGradientStep(pybind11::module_& module);

}  // namespace hvl::python
