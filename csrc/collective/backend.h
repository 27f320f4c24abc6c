// A data plane: does one fused operation on one group of ranks. Every implementation passes
// tests/cpp/contract and gives bitwise the results of ReferenceBackend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "csrc/tensor/reduce.h"
#include "horovodlite/session.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::collective {

/// A part of a fused allreduce; the pieces in order form one long vector, the same on every rank.
struct ReducePiece {
  const void* input;
  void* output;  ///< may equal input
  std::int64_t element_count;
};

/// A part of a fused broadcast.
struct BroadcastPiece {
  const void* input;  ///< read on the root only
  void* output;       ///< written on every rank; may equal input
  std::size_t bytes;
};

/// A tensor of a fused allgather.
struct GatherPiece {
  const void* input;
  void* output;                             ///< concatenation in rank order
  std::span<const std::size_t> rank_bytes;  ///< contribution of each rank, the same on every rank
};

/// Calls come from one thread at a time (the engine's executor role), in the same order on every
/// rank. They block until this rank's output is complete and its input may be reused; a peer may
/// still be reading shared memory of an earlier call, which the next call takes care of. An error
/// is final: the backend is of no more use. Abort() makes running and later calls return its
/// status.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;  ///< "local", "tcp", "reference"

  /// Elements are combined in rank order: the result is the same for any division into pieces and
  /// calls. InvalidArgument where tensor::CheckReduction refuses.
  virtual Status Allreduce(std::span<const ReducePiece> pieces, const tensor::ReduceSpec& spec) = 0;
  virtual Status Broadcast(std::span<const BroadcastPiece> pieces, int root) = 0;
  virtual Status Allgather(std::span<const GatherPiece> pieces) = 0;
  virtual Status Barrier() = 0;

  /// Any thread, never blocks. `cause` must not be OK; the first one counts.
  virtual void Abort(const Status& cause) = 0;

  /// Memory that this backend reduces without copies; see Session::Allocate. Any thread.
  /// NotSupported when it has none. The memory stays valid while `owner` lives, also after the
  /// backend is gone.
  virtual Result<SharedBuffer> Allocate(std::size_t bytes) = 0;
};

}  // namespace hvl::collective
