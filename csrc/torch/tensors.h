// LibTorch's tensors as the runtime sees them: an address, an element type, a shape and the order
// of the dimensions in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "horovodlite/session.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::torch {

inline constexpr Layout kRowMajor = 0;

/// Nothing for a type that the runtime does not have, also complex ones.
std::optional<DType> DTypeOf(at::ScalarType type);

/// The order of a strided tensor's dimensions; nothing when there are holes or overlaps, or more
/// dimensions than a Layout can name.
std::optional<Layout> LayoutOf(const at::Tensor& tensor);

/// A tensor as numbers that the runtime knows, in its own memory if that is dense.
struct Numbers {
  at::Tensor tensor;  ///< without history; complex numbers are pairs, in one more dimension
  Layout layout = kRowMajor;
};

/// InvalidArgument for what the runtime cannot work on: other devices, layouts and types.
Result<Numbers> InMemoryOrder(const at::Tensor& tensor);
/// The same in row-major order, copied if need be.
Result<at::Tensor> RowMajor(const at::Tensor& tensor);
/// What came back from the runtime, in the type of what these two were given. No copy.
at::Tensor Like(const at::Tensor& numbers, const at::Tensor& tensor);

/// Requires a type that DTypeOf knows.
TensorArg Argument(const Numbers& source, void* output);

/// A tensor on memory of the runtime, which it keeps alive. No copy.
at::Tensor OnMemory(std::shared_ptr<const void> owner, void* data, at::IntArrayRef sizes,
                    at::IntArrayRef strides, at::ScalarType type);
/// The same, row-major, of what the runtime has made of `tensor`.
at::Tensor FromGathered(const GatheredTensor& gathered, const at::Tensor& tensor);

/// Throws hvl::Error with InvalidArgument.
[[noreturn]] void Refuse(std::string message);

/// "[2, 3]"
std::string SizesText(const at::Tensor& tensor);

}  // namespace hvl::torch
