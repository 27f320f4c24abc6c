// Operations that programs measure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "horovodlite/session.h"

namespace hvl::bench {

/// The sum of the ranks' values, in place; they outlive the operation.
inline Operation Sum(std::string name, std::vector<float>& values) {
  Operation operation;
  operation.name = std::move(name);
  operation.reduce_op = ReduceOp::kSum;
  operation.tensors = {{.input = values.data(),
                        .output = values.data(),
                        .shape = {static_cast<std::int64_t>(values.size())}}};
  return operation;
}

}  // namespace hvl::bench
