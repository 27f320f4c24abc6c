// Operations that come again: the same name, the same arguments, the same memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "horovodlite/types.h"

namespace hvl::python {

/// Whether `known` is the operation with the arguments of `wanted` and this tensor.
bool IsSame(const Operation& known, const Operation& wanted, const TensorArg& tensor);

/// A training program reduces the same tensors in each step. So the description of the last
/// operation of each name is kept, and a call that is like it submits that one: no name is put
/// together, and no memory taken and given back. Nothing is kept alive by it: what is compared is
/// the memory of tensors that the caller has. Needs the GIL.
class KnownOperations {
 public:
  /// The last one of that name, or null.
  std::shared_ptr<const Operation> Find(std::string_view name) const;
  void Keep(std::string_view name, std::shared_ptr<const Operation> operation);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>()(name);
    }
  };
  std::unordered_map<std::string, std::shared_ptr<const Operation>, Hash, std::equal_to<>>
      by_name_;  // shared with the operations in flight
};

}  // namespace hvl::python
