// A frozen plan as a participant runs it. Used by Participant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/plan/buckets.h"
#include "csrc/plan/planner.h"

namespace hvl::plan {

/// Adds to what a batch is. The first tensor says it, the others must fit: false if not.
bool Fuse(const wire::Signature& signature, DType dtype, Batch& batch, FusionKey& key);

struct TensorRange {
  std::size_t first = 0, count = 1;  ///< count > 0
};
/// The same for several tensors of an operation, or for one without tensors.
bool FuseRange(const wire::Signature& signature, TensorRange range, Batch& batch, FusionKey& key);

/// The buckets are started in order, one round after the other. Operations are numbers that the
/// caller chooses.
struct FrozenPlan {
  struct Bucket {
    /// As they are handed out, but with the operation in place of the ticket of an entry.
    std::vector<Batch> batches;
    std::vector<std::uint32_t> operations;
    std::size_t missing = 0;  ///< of them, not submitted in this round
  };

  std::uint32_t number = 0;
  std::uint64_t hash = 0;
  std::uint64_t base = 0;  ///< sequence of the last batch before the plan
  BucketCounts counts;
  std::vector<Bucket> buckets;

  std::size_t next = 0;       ///< the bucket that starts next; those before have, in this round
  std::uint64_t started = 0;  ///< over all rounds
  std::size_t ready = 0;      ///< operations submitted whose bucket has not started
  TimePoint moved;            ///< when something was submitted, started or finished
  /// When a thread has waited for long enough for an operation that is ready.
  std::optional<TimePoint> patience_ends;
  /// Set when this rank starts no more of it, until the coordinator says how far all ranks got.
  std::optional<wire::ThawReason> stopped;

  std::uint64_t last_sequence() const { return base + counts.Batches(started); }
};

}  // namespace hvl::plan
