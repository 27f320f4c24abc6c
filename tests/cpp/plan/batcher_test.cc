// The fusion rules, one by one and at random.
#include "csrc/plan/batcher.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

namespace hvl::plan {
namespace {

using Batches = std::vector<std::vector<std::uint32_t>>;

FusionKey Key(OpKind kind, DType dtype = DType::kFloat32) {
  wire::Signature signature;
  signature.kind = kind;
  return KeyOf(signature, dtype);
}

/// Adds an operation of one tensor.
void Add(Batcher& batcher, std::uint32_t operation, const FusionKey& key, std::uint64_t bytes) {
  batcher.BeginOperation();
  batcher.Add({operation, 0}, key, bytes, 20);
}

Batches Operations(const std::vector<std::vector<ReadyTensor>>& batches) {
  Batches operations;
  for (const auto& batch : batches) {
    operations.emplace_back();
    for (const ReadyTensor& tensor : batch) operations.back().push_back(tensor.operation);
  }
  return operations;
}

TEST_CASE("tensors of one key share a batch up to the threshold, in order of readiness") {
  Batcher batcher(100);
  const FusionKey key = Key(OpKind::kAllreduce);
  for (std::uint32_t i = 0; i < 5; ++i) Add(batcher, i, key, 40);
  CHECK(batcher.has_full());
  CHECK(Operations(batcher.TakeAll()) == Batches{{0, 1}, {2, 3}, {4}});
  CHECK(batcher.empty());
}

TEST_CASE("a batch may be exactly as large as the threshold") {
  Batcher batcher(80);
  Add(batcher, 0, Key(OpKind::kAllreduce), 40);
  CHECK_FALSE(batcher.has_full());
  Add(batcher, 1, Key(OpKind::kAllreduce), 40);
  CHECK(batcher.has_full());
  CHECK(Operations(batcher.TakeFull()) == Batches{{0, 1}});
}

TEST_CASE("a tensor above the threshold goes alone and does not close the batch around it") {
  Batcher batcher(100);
  const FusionKey key = Key(OpKind::kAllreduce);
  Add(batcher, 0, key, 10);
  Add(batcher, 1, key, 5000);
  Add(batcher, 2, key, 10);
  CHECK(Operations(batcher.TakeAll()) == Batches{{0, 2}, {1}});
}

TEST_CASE("misfits are looked past") {
  Batcher batcher(100);
  Add(batcher, 0, Key(OpKind::kAllreduce), 10);
  Add(batcher, 1, Key(OpKind::kAllreduce, DType::kFloat64), 10);
  Add(batcher, 2, Key(OpKind::kBarrier), 0);
  Add(batcher, 3, Key(OpKind::kBroadcast), 10);
  Add(batcher, 4, Key(OpKind::kAllreduce), 10);
  Add(batcher, 5, Key(OpKind::kBarrier), 0);
  CHECK(Operations(batcher.TakeAll()) == Batches{{0, 4}, {1}, {2}, {3}, {5}});
}

TEST_CASE("of two batches that cannot be joined the emptier one stays open") {
  Batcher batcher(100);
  const FusionKey key = Key(OpKind::kAllreduce);
  Add(batcher, 0, key, 20);
  Add(batcher, 1, key, 90);
  Add(batcher, 2, key, 70);
  CHECK(Operations(batcher.TakeAll()) == Batches{{0, 2}, {1}});
  Add(batcher, 0, key, 90);
  Add(batcher, 1, key, 20);
  Add(batcher, 2, key, 70);
  CHECK(Operations(batcher.TakeAll()) == Batches{{0}, {1, 2}});
}

TEST_CASE("with threshold 0 nothing is fused, not even tensors without elements") {
  Batcher batcher(0);
  for (std::uint32_t i = 0; i < 3; ++i) Add(batcher, i, Key(OpKind::kAllreduce), 0);
  CHECK(Operations(batcher.TakeFull()) == Batches{{0}, {1}, {2}});
}

TEST_CASE("broadcasts of one root share a batch whatever their types; allgathers as well") {
  wire::Signature broadcast;
  broadcast.kind = OpKind::kBroadcast;
  CHECK(KeyOf(broadcast, DType::kInt8) == KeyOf(broadcast, DType::kFloat64));
  wire::Signature other = broadcast;
  other.root_rank = 1;
  CHECK(KeyOf(broadcast, DType::kInt8) != KeyOf(other, DType::kInt8));
  wire::Signature gather;
  gather.kind = OpKind::kAllgather;
  CHECK(KeyOf(gather, DType::kInt8) == KeyOf(gather, DType::kFloat64));
}

TEST_CASE("allreduces of different types, reductions, scales or process sets do not mix") {
  const wire::Signature base;
  CHECK(KeyOf(base, DType::kFloat32) != KeyOf(base, DType::kFloat64));
  for (int property = 0; property < 4; ++property) {
    wire::Signature other = base;
    if (property == 0) other.reduce_op = ReduceOp::kMax;
    if (property == 1) other.prescale = 0.5;
    if (property == 2) other.postscale = 0.5;
    if (property == 3) other.process_set = 1;
    CHECK(KeyOf(base, DType::kFloat32) != KeyOf(other, DType::kFloat32));
  }
}

TEST_CASE("sizes saturate instead of wrapping around") {
  const std::int64_t huge = std::int64_t{1} << 62;
  CHECK(TensorBytes({DType::kFloat32, 0, {huge, huge}}) == ~std::uint64_t{0});
  CHECK(TensorBytes({DType::kFloat32, 0, {huge, 0, huge}}) == 0);
  CHECK(TensorBytes({DType::kFloat64, 0, {}}) == 8);
  Batcher batcher(100);
  Add(batcher, 0, Key(OpKind::kAllreduce), ~std::uint64_t{0});
  Add(batcher, 1, Key(OpKind::kAllreduce), ~std::uint64_t{0});
  CHECK(Operations(batcher.TakeFull()) == Batches{{0}, {1}});
}

TEST_CASE("a batch is closed before it needs too large a message") {
  Batcher batcher(std::size_t{1} << 40);
  batcher.BeginOperation();
  for (std::uint32_t i = 0; i < 1000; ++i) {
    batcher.Add({i, 0}, Key(OpKind::kAllreduce), 4, std::size_t{4000});
  }
  const auto batches = batcher.TakeAll();
  CHECK(batches.size() == 4);
  for (const auto& batch : batches) CHECK(batch.size() * 4000 <= (std::size_t{1} << 20));
}

TEST_CASE("what is cleared is forgotten, and the batcher can go on") {
  Batcher batcher(80);
  for (std::uint32_t i = 0; i < 5; ++i) Add(batcher, i, Key(OpKind::kAllreduce), 40);
  batcher.Clear();
  CHECK(batcher.empty());
  CHECK_FALSE(batcher.has_full());
  Add(batcher, 9, Key(OpKind::kAllreduce), 40);
  CHECK_FALSE(batcher.has_full());
  CHECK(Operations(batcher.TakeAll()) == Batches{{9}});
}

TEST_CASE("whatever comes, batches obey the rules and every tensor runs once") {
  const unsigned seed = GENERATE(take(200, random(1U, 1U << 30)));
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&random](unsigned limit) {
    return static_cast<std::uint32_t>(random() % limit);
  };
  const std::uint64_t threshold = below(3) == 0 ? 0 : below(300);
  Batcher batcher(threshold);
  struct Tensor {
    FusionKey key;
    std::uint64_t bytes = 0;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Tensor> waiting;
  std::uint32_t operation = 0;
  for (int step = 0; step < 100; ++step) {
    if (below(4) != 0) {
      batcher.BeginOperation();
      for (std::uint32_t i = 0, n = 1 + below(3); i < n; ++i) {
        const Tensor tensor{Key(static_cast<OpKind>(below(4)), static_cast<DType>(below(3))),
                            below(200)};
        batcher.Add({operation, i}, tensor.key, tensor.bytes, 20);
        waiting[{operation, i}] = tensor;
      }
      ++operation;
      continue;
    }
    const bool all = below(3) == 0;
    const auto batches = all ? batcher.TakeAll() : batcher.TakeFull();
    std::set<std::uint32_t> begun;
    for (const auto& batch : batches) {
      REQUIRE_FALSE(batch.empty());
      std::uint64_t bytes = 0;
      const FusionKey key = waiting.at({batch[0].operation, batch[0].tensor_index}).key;
      for (const ReadyTensor& tensor : batch) {
        const auto found = waiting.find({tensor.operation, tensor.tensor_index});
        REQUIRE(found != waiting.end());
        CHECK(found->second.key == key);
        bytes += found->second.bytes;
        begun.insert(tensor.operation);
        waiting.erase(found);
      }
      if (batch.size() > 1) {
        CHECK(bytes <= threshold);
        CHECK(threshold > 0);
        CHECK(key.kind != OpKind::kBarrier);
      }
    }
    for (const auto& [id, tensor] : waiting) CHECK_FALSE(begun.contains(id.first));
    if (all) CHECK(waiting.empty());
    CHECK_FALSE(batcher.has_full());
    CHECK(batcher.empty() == waiting.empty());
  }
}

}  // namespace
}  // namespace hvl::plan
