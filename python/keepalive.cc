#include "python/keepalive.h"

#include <utility>

namespace hvl::python {
namespace {

constexpr std::size_t kChecksPerAdd = 2;  // > 1: the table shrinks while it is used

}  // namespace

std::shared_ptr<Kept> KeepAlive::Add(Handle operation, pybind11::object objects) {
  ReleaseSome(kChecksPerAdd);
  entries_.push_back(std::make_shared<Kept>(Kept{std::move(operation), std::move(objects)}));
  return entries_.back();
}

void KeepAlive::ReleaseFinished() { ReleaseSome(entries_.size()); }

void KeepAlive::ReleaseSome(std::size_t checks) {
  for (; checks > 0 && !entries_.empty(); --checks) {
    if (cursor_ >= entries_.size()) cursor_ = 0;
    if (!entries_[cursor_]->operation.finished()) {
      ++cursor_;
      continue;
    }
    const std::shared_ptr<Kept> finished = std::move(entries_[cursor_]);
    entries_[cursor_] = std::move(entries_.back());
    entries_.pop_back();
    // Releasing an object may run any Python code, also code that submits operations and so comes
    // back here. Therefore the objects die now that the table is in order again.
    const pybind11::object objects = std::move(finished->objects);
  }
}

}  // namespace hvl::python
