#include "csrc/plan/buckets.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "csrc/wire/signature_codec.h"
#include "csrc/wire/writer.h"

namespace hvl::plan {
namespace {

constexpr std::size_t kMemberBytes = 16;  // at most, in a message

std::uint64_t BytesOf(const PlannedOperation& operation) {
  std::uint64_t sum = 0;
  for (const TensorCost& tensor : operation.tensors) {
    sum += std::min(tensor.bytes, std::numeric_limits<std::uint64_t>::max() - sum);
  }
  return sum;
}

/// How many of them, the first one at any rate, have at most `most` bytes together.
template <typename Iterator>
std::ptrdiff_t Fitting(const Iterator& begin, const Iterator& end, std::uint64_t most) {
  std::uint64_t room = most;
  Iterator it = begin;
  for (; it != end; ++it) {
    const std::uint64_t bytes = BytesOf(*it);
    if (bytes > room) break;
    room -= bytes;
  }
  return it == begin && it != end ? 1 : it - begin;
}

void AppendMember(wire::DecidedBatch& batch, std::uint32_t id, const ReadyTensor& first,
                  std::uint32_t count, bool whole) {
  if (whole && !batch.members.empty()) {
    wire::Member& last = batch.members.back();
    if (!last.range && *last.id + last.count == id) {
      ++last.count;
      return;
    }
  }
  wire::Member& member = batch.members.emplace_back();
  member.id = id;
  if (!whole) member.range = {first.tensor_index, count};
}

wire::DecidedBatch MakeBatch(std::span<const PlannedOperation> operations,
                             const std::vector<ReadyTensor>& tensors) {
  wire::DecidedBatch batch;
  for (std::size_t i = 0; i < tensors.size();) {
    const ReadyTensor first = tensors[i];
    std::uint32_t count = 0;
    for (; i < tensors.size() &&
           tensors[i] == ReadyTensor{first.operation, first.tensor_index + count};
         ++i) {
      ++count;
    }
    const PlannedOperation& operation = operations[first.operation];
    AppendMember(batch, operation.id, first, count, count == operation.tensors.size());
  }
  return batch;
}

/// Appends all that gathers.
void Close(std::span<const PlannedOperation> operations, Batcher& batcher,
           std::vector<wire::Bucket>& buckets) {
  const std::vector<std::vector<ReadyTensor>> batches = batcher.TakeAll();
  std::vector<std::size_t> last_batch(operations.size());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    for (const ReadyTensor& tensor : batches[i]) last_batch[tensor.operation] = i;
  }
  std::size_t reach = 0;  // one past the last batch that must be in this bucket
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (i >= reach) buckets.emplace_back();
    for (const ReadyTensor& tensor : batches[i]) {
      reach = std::max(reach, last_batch[tensor.operation] + 1);
    }
    buckets.back().batches.push_back(MakeBatch(operations, batches[i]));
  }
}

}  // namespace

std::vector<wire::Bucket> MakeBuckets(std::span<const PlannedOperation> operations,
                                      const BucketSizes& sizes) {
  std::ptrdiff_t first_end = 0;
  std::ptrdiff_t last_begin = std::ssize(operations);
  if (sizes.edge > 0) {
    first_end = Fitting(operations.begin(), operations.end(), sizes.edge);
    last_begin -= Fitting(operations.rbegin(), operations.rend() - first_end, sizes.edge);
  }
  std::vector<wire::Bucket> buckets;
  Batcher batcher(sizes.most);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto position = static_cast<std::ptrdiff_t>(i);
    if (position == first_end || position == last_begin) Close(operations, batcher, buckets);
    batcher.BeginOperation();
    for (std::size_t tensor = 0; tensor < operations[i].tensors.size(); ++tensor) {
      const TensorCost& cost = operations[i].tensors[tensor];
      batcher.Add({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(tensor)}, cost.key,
                  cost.bytes, kMemberBytes);
    }
  }
  Close(operations, batcher, buckets);
  return buckets;
}

// FNV-1a, of the bytes that would describe the plan in full.
std::uint64_t PlanHash(std::span<const wire::Bucket> buckets,
                       const std::function<const wire::Signature&(std::uint32_t id)>& meaning) {
  wire::Writer text;
  for (const wire::Bucket& bucket : buckets) {
    text.Varint(bucket.batches.size());
    for (const wire::DecidedBatch& batch : bucket.batches) {
      text.Varint(batch.members.size());
      for (const wire::Member& member : batch.members) {
        text.Varint(member.range ? member.range->first_tensor : 0);
        text.Varint(member.range ? member.range->tensor_count : 0);
        for (std::uint32_t i = 0; i < member.count; ++i) {
          wire::WriteSignature(text, meaning(*member.id + i));
        }
      }
    }
  }
  constexpr std::uint64_t kOffset = 0xcbf29ce484222325U;
  constexpr std::uint64_t kPrime = 0x100000001b3U;
  std::uint64_t hash = kOffset;
  for (const std::byte byte : text.Take()) {
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * kPrime;
  }
  return hash;
}

std::uint64_t BucketHash(std::uint64_t plan_hash, std::size_t bucket) {
  constexpr std::uint64_t kSpread = 0x9e3779b97f4a7c15U;
  const std::uint64_t mixed = (plan_hash ^ (bucket + 1)) * kSpread;
  return mixed ^ (mixed >> 32);
}

BucketCounts::BucketCounts(std::span<const wire::Bucket> buckets) {
  std::uint64_t end = 0;
  for (const wire::Bucket& bucket : buckets) ends_.push_back(end += bucket.batches.size());
}

std::uint64_t BucketCounts::Batches(std::uint64_t count) const {
  if (ends_.empty()) return 0;
  const std::uint64_t rounds = count / ends_.size();
  const std::size_t rest = static_cast<std::size_t>(count % ends_.size());
  return rounds * ends_.back() + (rest == 0 ? 0 : ends_[rest - 1]);
}

}  // namespace hvl::plan
