// Whether a tensor's values are the negatives of what is in its memory, at the price of a load.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

namespace hvl::python {

/// A framework keeps this mark as one bit in the object behind a tensor, and its own function for
/// it gives up the GIL and takes it again, which costs more than submitting the tensor does. Where
/// the bit is, differs between versions; so it is found by trial, with a tensor that gets the mark.
/// Needs the GIL.
class NegativeMark {
 public:
  /// `tensor_type` makes tensors; `mark` marks one, or is None if that is not known how. No
  /// exceptions: then the mark is not found.
  NegativeMark(const pybind11::type& tensor_type, const pybind11::object& mark) noexcept;

  bool found() const { return bit_ != 0; }
  /// Requires found() and a tensor of the type, or of one with the same layout.
  bool IsOn(PyObject* tensor) const {
    const std::byte* const behind = PointerIn(tensor);
    return (*reinterpret_cast<const std::uint64_t*>(behind + word_offset_) & bit_) != 0;
  }

 private:
  const std::byte* PointerIn(PyObject* tensor) const {
    return *reinterpret_cast<const std::byte* const*>(reinterpret_cast<const std::byte*>(tensor) +
                                                      pointer_offset_);
  }
  void Find(const pybind11::object& tensor, const pybind11::object& mark);

  std::ptrdiff_t pointer_offset_ = 0;  ///< in the Python object, of the object behind
  std::ptrdiff_t word_offset_ = 0;     ///< in that
  std::uint64_t bit_ = 0;
};

}  // namespace hvl::python
