#include "python/known_operations.h"

#include <utility>

namespace hvl::python {
namespace {

// Programs that make up new names for ever leave old ones behind: they go all together.
constexpr std::size_t kMostNames = 16384;

}  // namespace

bool IsSame(const Operation& known, const Operation& wanted, const TensorArg& tensor) {
  const TensorArg& known_tensor = known.tensors.at(0);
  return known_tensor.input == tensor.input && known_tensor.output == tensor.output &&
         known_tensor.dtype == tensor.dtype && known_tensor.layout == tensor.layout &&
         known_tensor.shape == tensor.shape && known.kind == wanted.kind &&
         known.reduce_op == wanted.reduce_op && known.prescale == wanted.prescale &&
         known.postscale == wanted.postscale && known.process_set == wanted.process_set &&
         known.site == wanted.site;
}

std::shared_ptr<const Operation> KnownOperations::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void KnownOperations::Keep(std::string_view name, std::shared_ptr<const Operation> operation) {
  if (by_name_.size() >= kMostNames) by_name_.clear();
  by_name_.insert_or_assign(std::string(name), std::move(operation));
}

}  // namespace hvl::python
