// Operations that tests and benchmarks submit.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "horovodlite/session.h"

namespace hvl::test {

/// The sum of the ranks' values, in place; they outlive the operation.
template <typename Real>
Operation Allreduce(std::string name, std::vector<Real>& values) {
  static_assert(std::is_same_v<Real, float> || std::is_same_v<Real, double>);
  Operation operation;
  operation.name = std::move(name);
  operation.reduce_op = ReduceOp::kSum;
  operation.tensors = {{.input = values.data(),
                        .output = values.data(),
                        .dtype = std::is_same_v<Real, float> ? DType::kFloat32 : DType::kFloat64,
                        .shape = {static_cast<std::int64_t>(values.size())}}};
  return operation;
}

}  // namespace hvl::test
