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
  // Releasing an object may run any Python code, also code that submits operations and so comes
  // back here. Therefore the objects die when the table is in order again.
  std::vector<std::shared_ptr<Kept>> finished;
  for (; checks > 0 && !entries_.empty(); --checks) {
    if (cursor_ >= entries_.size()) cursor_ = 0;
    std::shared_ptr<Kept>& entry = entries_[cursor_];
    if (!entry->operation.finished()) {
      ++cursor_;
      continue;
    }
    finished.push_back(std::move(entry));
    entry = std::move(entries_.back());
    entries_.pop_back();
  }
  for (const std::shared_ptr<Kept>& entry : finished) {
    const pybind11::object objects = std::move(entry->objects);
  }
}

}  // namespace hvl::python
