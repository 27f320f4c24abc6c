#include "python/handle_table.h"

#include <cstddef>
#include <utility>

namespace hvl::python {

namespace py = pybind11;

std::int64_t HandleTable::Add(Unfetched operation) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(places_.size()));
    places_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Place& place = places_[index];
  place.operation = std::move(operation);
  return std::int64_t{place.uses} << 32 | index;
}

HandleTable::Place* HandleTable::PlaceOf(PyObject* object) {
  static_assert(sizeof(long) == sizeof(std::int64_t));
  int overflow = 0;  // then the number is -1. Of more than 30 bits this function is the fast one.
  const std::int64_t number = PyLong_Check(object) ? PyLong_AsLongAndOverflow(object, &overflow)
                                                   : PyNumber_AsSsize_t(object, PyExc_IndexError);
  if (number == -1 && PyErr_Occurred()) PyErr_Clear();
  if (number < 0) return nullptr;
  const auto index = static_cast<std::size_t>(number & 0xFFFFFFFF);
  if (index >= places_.size()) return nullptr;
  Place& place = places_[index];
  return place.uses == number >> 32 && place.operation.kept ? &place : nullptr;
}

Unfetched& HandleTable::Find(PyObject* number) {
  Place* const place = PlaceOf(number);
  if (place != nullptr) return place->operation;
  PyErr_Format(PyExc_ValueError, "Handle %S was not created or has been cleared.", number);
  throw py::error_already_set();
}

Unfetched HandleTable::TakeDone(PyObject* number) {
  Place* const place = PlaceOf(number);
  if (place == nullptr || place->operation.finish) return {};
  return place->operation.kept->operation.finished() ? Take(*place) : Unfetched{};
}

Unfetched HandleTable::Take(PyObject* number) {
  Place* const place = PlaceOf(number);
  return place == nullptr ? Unfetched{} : Take(*place);
}

Unfetched HandleTable::Take(Place& place) {
  Unfetched operation = std::move(place.operation);
  place.operation.kept.reset();
  place.uses = (place.uses + 1) & 0x7FFFFFFF;
  free_.push_back(static_cast<std::uint32_t>(&place - places_.data()));
  return operation;
}

}  // namespace hvl::python
