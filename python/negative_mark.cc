#include "python/negative_mark.h"

#include <bit>
#include <cstring>
#include <exception>
#include <vector>

namespace hvl::python {
namespace {

namespace py = pybind11;

// How far into the object behind a tensor the mark is looked for. No version of the framework has
// had a smaller object, so no memory of others is read.
constexpr std::size_t kBytesBehind = 192;

std::vector<std::uint64_t> WordsAt(const void* memory, std::size_t bytes) {
  std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t));
  std::memcpy(words.data(), memory, words.size() * sizeof(std::uint64_t));
  return words;
}

/// The offset of the first word of that value; 0 = there is none.
std::ptrdiff_t OffsetOf(std::uint64_t value, const std::vector<std::uint64_t>& words) {
  for (std::size_t i = sizeof(PyObject) / sizeof value; i < words.size(); ++i) {
    if (words[i] == value) return static_cast<std::ptrdiff_t>(i * sizeof value);
  }
  return 0;
}

}  // namespace

NegativeMark::NegativeMark(const py::type& tensor_type, const py::object& mark) noexcept {
  try {
    if (!mark.is_none()) Find(tensor_type(1), mark);
  } catch (const std::exception&) {
    bit_ = 0;
  }
}

void NegativeMark::Find(const py::object& tensor, const py::object& mark) {
  const auto address = tensor.attr("_cdata").cast<std::uint64_t>();
  const auto object_bytes = static_cast<std::size_t>(Py_TYPE(tensor.ptr())->tp_basicsize);
  pointer_offset_ = OffsetOf(address, WordsAt(tensor.ptr(), object_bytes));
  if (pointer_offset_ == 0) return;
  auto* const behind = reinterpret_cast<void*>(address);  // NOLINT: the address of an object
  const std::vector<std::uint64_t> before = WordsAt(behind, kBytesBehind);
  mark(tensor);
  const std::vector<std::uint64_t> after = WordsAt(behind, kBytesBehind);
  std::uint64_t bit = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::uint64_t changed = before[i] ^ after[i];
    if (changed == 0) continue;
    if (bit != 0 || !std::has_single_bit(changed) || (after[i] & changed) == 0) return;
    bit = changed;
    word_offset_ = static_cast<std::ptrdiff_t>(i * sizeof changed);
  }
  const bool is_negative = tensor.attr("is_neg")().cast<bool>();
  const bool other_is = tensor.attr("resolve_neg")().attr("is_neg")().cast<bool>();
  if (!is_negative || other_is) return;
  bit_ = bit;
  if (bit_ != 0 && IsOn(tensor.attr("resolve_neg")().ptr())) bit_ = 0;
}

}  // namespace hvl::python
