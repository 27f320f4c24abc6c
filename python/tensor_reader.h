// Reads tensors of a framework at the price of a C call, without being linked to the framework.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <optional>

#include "horovodlite/types.h"
#include "python/dlpack.h"
#include "python/negative_mark.h"

namespace hvl::python {

/// Understands ordinary tensors only: of the very types that it was made for, in the processor's
/// memory, of one of the core's dtypes, without holes or overlaps, with values that are what is in
/// memory. Whoever asks for another one has to read it by other means. Needs the GIL.
class TensorReader {
 public:
  /// `tensor_type` has DLPack's exchange interface and is_neg(); else no tensor is ordinary. Both
  /// types have one layout. `mark_negative`: see NegativeMark.
  TensorReader(pybind11::type tensor_type, pybind11::type parameter_type,
               const pybind11::object& mark_negative);

  /// Describes the tensor as an operation in place; false, and no exception, if it is not ordinary.
  bool Read(PyObject* tensor, TensorArg& arg) const;
  /// Where the tensor is and what form it has, or false, and no exception, unless it is of the
  /// types, in the processor's memory and of a dtype of the core.
  bool Describe(PyObject* tensor, dlpack::Tensor& description) const;
  /// Whether its values are not what is in memory, of which DLPack does not know. Requires a
  /// described tensor.
  bool IsNegativeView(PyObject* tensor) const;

 private:
  const pybind11::type tensor_type_, parameter_type_;
  const NegativeMark negative_mark_;
  pybind11::object is_negative_view_;           // the type's method
  const dlpack::Exchange* exchange_ = nullptr;  // lives as long as the process
};

/// Whether two tensors have the same dtype, shape and place of each element.
bool HaveOneForm(const dlpack::Tensor& a, const dlpack::Tensor& b);

/// What the elements take. Requires a described tensor.
std::size_t ByteCount(const dlpack::Tensor& tensor);

/// The order of the dimensions in memory as a number: see layout_of() in horovodlite/torch. Nothing
/// when there are holes or overlaps, or too many dimensions.
std::optional<Layout> LayoutOf(const dlpack::Tensor& tensor);

}  // namespace hvl::python
