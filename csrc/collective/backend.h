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

/// A tensor of a fused reduce-scatter. Input and output do not overlap.
struct ScatterPiece {
  const void* input;                            ///< all ranks' parts in rank order
  void* output;                                 ///< this rank's part; may be null when it is empty
  std::span<const std::int64_t> rank_elements;  ///< of each part, the same on every rank
};

/// A tensor of a fused all-to-all. `bytes` of what rank i has for rank j at [i * ranks + j], the
/// same on every rank. Input and output do not overlap; either may be null when it is empty.
struct ExchangePiece {
  const void* input;  ///< parts in the order of the ranks that get them
  void* output;       ///< parts in the order of the ranks they come from
  std::span<const std::size_t> bytes;
};

enum class GateResult : std::uint8_t { kPassed, kWithdrawn, kNotYet };

/// Calls come from one thread at a time (the engine's executor role), in the same order on every
/// rank. They block until this rank's output is complete and its input may be reused; a peer may
/// still be reading shared memory of an earlier call, which the next call takes care of. An error
/// is final: the backend is of no more use. Abort() makes running and later calls return its
/// status.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;  ///< "local", "tcp", "two-level", "reference"

  /// Elements are combined in rank order, host by host where ranks are on several, or in the groups
  /// that a backend was told (tensor::Reduce): the result is the same for any division into pieces
  /// and calls. InvalidArgument where tensor::CheckElementwise refuses; for Adasum see
  /// adasum.h.
  virtual Status Allreduce(std::span<const ReducePiece> pieces, const tensor::ReduceSpec& spec) = 0;
  virtual Status Broadcast(std::span<const BroadcastPiece> pieces, int root) = 0;
  virtual Status Allgather(std::span<const GatherPiece> pieces) = 0;
  virtual Status Barrier() = 0;
  /// Each element is combined in the order in which Allreduce does it by default.
  virtual Status Reducescatter(std::span<const ScatterPiece> pieces,
                               const tensor::ReduceSpec& spec) = 0;
  virtual Status Alltoall(std::span<const ExchangePiece> pieces) = 0;

  /// A meeting before an operation that no coordinator has decided: Gate() passes when all ranks
  /// have come to gate `number`, which is higher than those before, and does not when Withdraw
  /// calls back. `mark` tells what comes after the gate; Internal when the ranks' marks differ.
  /// Whoever calls back must know that some rank will not come to these gates. Unless it
  /// `may_sleep`, it looks for no longer than a spin; kNotYet leaves this rank at the gate, for
  /// another call. Only if has_gates().
  virtual bool has_gates() const { return false; }
  virtual Result<GateResult> Gate(std::uint64_t /*number*/, std::uint32_t /*mark*/,
                                  bool /*may_sleep*/) {
    return Status(StatusCode::kInternal, "this data plane has no gates");
  }
  /// Any thread, never blocks: calls back from gates `first` to `last`, now and in future. Each
  /// call is for higher numbers than those before.
  virtual void Withdraw(std::uint64_t /*first*/, std::uint64_t /*last*/) {}

  /// A backend of some of the ranks (ascending, this one among them), which are renumbered from 0.
  /// Local: asks nobody. It shares the means and the fate of this one, which must outlive it; calls
  /// to both, and to other parts, come from the same thread, and ranks make those that they have in
  /// common in the same order. Errors name ranks of the world.
  /// InvalidArgument for other ranks than that; ResourceExhausted when it needs memory and there is
  /// none.
  virtual Result<std::unique_ptr<Backend>> Split(std::span<const int> ranks) = 0;

  /// Any thread, never blocks. `cause` must not be OK; the first one counts.
  virtual void Abort(const Status& cause) = 0;

  /// Memory that this backend reduces without copies; see Session::Allocate. Any thread.
  /// NotSupported when it has none. The memory stays valid while `owner` lives, also after the
  /// backend is gone.
  virtual Result<SharedBuffer> Allocate(std::size_t bytes) = 0;
};

}  // namespace hvl::collective
