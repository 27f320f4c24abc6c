// From the order that was learned to the buckets of a plan, and what both sides compute of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "csrc/plan/batcher.h"
#include "csrc/wire/messages.h"

namespace hvl::plan {

struct PlannedOperation {
  std::uint32_t id = 0;
  std::span<const TensorCost> tensors;
};

struct BucketSizes {
  std::size_t most = 0;  ///< bytes; a larger tensor is alone; 0 = every tensor is
  std::size_t edge = 0;  ///< of the first bucket, which leaves early, and the last, which ends late
};

/// Fuses the operations in their order, by the rules of Batcher. Batches that share an operation
/// make one bucket, so that a plan is never cut within an operation.
std::vector<wire::Bucket> MakeBuckets(std::span<const PlannedOperation> operations,
                                      const BucketSizes& sizes);

/// Equal on two ranks iff they mean the same by this plan, as far as 64 bits can tell.
std::uint64_t PlanHash(std::span<const wire::Bucket> buckets,
                       const std::function<const wire::Signature&(std::uint32_t id)>& meaning);
/// What a gate shows.
std::uint64_t BucketHash(std::uint64_t plan_hash, std::size_t bucket);

/// Buckets are started again and again in the same order: how many batches is that?
class BucketCounts {
 public:
  BucketCounts() = default;
  explicit BucketCounts(std::span<const wire::Bucket> buckets);

  std::size_t buckets() const { return ends_.size(); }
  /// Batches of the first `count` buckets, over all rounds.
  std::uint64_t Batches(std::uint64_t count) const;

 private:
  std::vector<std::uint64_t> ends_;  // batches of a round up to and with this bucket
};

}  // namespace hvl::plan
