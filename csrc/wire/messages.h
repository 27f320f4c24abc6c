// Control messages as values, and their codec. Bytes from a peer are hostile until Decode has
// accepted them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::wire {

using Bytes = std::vector<std::byte>;

// Limits, enforced when encoding (our bug) and decoding (peer's fault).
inline constexpr std::size_t kMaxFrameBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxNameBytes = 4096;
inline constexpr std::size_t kMaxDimensions = 64;

struct TensorSignature {
  DType dtype = DType::kFloat32;
  Layout layout = 0;
  Shape shape;  ///< allgather: the first dimension is left out here (it may differ); see Request

  bool operator==(const TensorSignature&) const = default;
};

/// All that ranks must agree on for one operation. Interned by the coordinator: after its first use
/// a signature costs only its id.
struct Signature {
  OpKind kind = OpKind::kAllreduce;
  std::string name;
  std::uint32_t process_set = 0;  ///< 0 = all ranks
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int32_t root_rank = 0;
  std::vector<TensorSignature> tensors;

  bool operator==(const Signature&) const = default;
};

// The messages between participants and the coordinator (Announce, Decide, Bye), their fields and
// the interning protocol are defined here by the wire room; every frame starts with version and
// generation.

}  // namespace hvl::wire
