// From a learned order to buckets.
#include "csrc/plan/buckets.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "csrc/base/str.h"

namespace hvl::plan {
namespace {

constexpr std::size_t kNoLimit = std::size_t{1} << 30;

FusionKey Key(DType dtype) {
  FusionKey key;
  key.dtype = dtype;
  return key;
}

/// Operations with ids 0, 1, 2, ..., each a list of tensors.
class Program {
 public:
  Program& Add(std::vector<TensorCost> tensors) {
    costs_.push_back(std::move(tensors));
    return *this;
  }
  Program& Add(std::uint64_t bytes) { return Add({{Key(DType::kFloat32), bytes}}); }

  std::vector<wire::Bucket> Buckets(const BucketSizes& sizes) const {
    std::vector<PlannedOperation> operations;
    for (std::size_t i = 0; i < costs_.size(); ++i) {
      operations.push_back({static_cast<std::uint32_t>(i), costs_[i]});
    }
    return MakeBuckets(operations, sizes);
  }
  /// "0-2 | 3 4[0+1] / 4[1+2]": buckets, and batches of one bucket.
  std::string Text(const BucketSizes& sizes) const {
    std::string text;
    for (const wire::Bucket& bucket : Buckets(sizes)) {
      text += text.empty() ? "" : " | ";
      for (std::size_t i = 0; i < bucket.batches.size(); ++i) {
        if (i > 0) text += " / ";
        for (std::size_t j = 0; j < bucket.batches[i].members.size(); ++j) {
          const wire::Member& member = bucket.batches[i].members[j];
          if (j > 0) text += ' ';
          text += Format("{}", *member.id);
          if (member.count > 1) text += Format("-{}", *member.id + member.count - 1);
          if (member.range) {
            text += Format("[{}+{}]", member.range->first_tensor, member.range->tensor_count);
          }
        }
      }
    }
    return text;
  }

 private:
  std::vector<std::vector<TensorCost>> costs_;
};

TEST_CASE("operations are fused in their order up to the limit") {
  Program program;
  program.Add(10).Add(10).Add(10).Add(10).Add(10);
  CHECK(program.Text({.most = kNoLimit}) == "0-4");
  CHECK(program.Text({.most = 20}) == "0-1 | 2-3 | 4");
  CHECK(program.Text({.most = 0}) == "0 | 1 | 2 | 3 | 4");
}

TEST_CASE("the first and the last bucket are small") {
  Program program;
  for (int i = 0; i < 10; ++i) program.Add(10);
  CHECK(program.Text({.most = kNoLimit, .edge = 20}) == "0-1 | 2-7 | 8-9");
  CHECK(program.Text({.most = 30, .edge = 5}) == "0 | 1-3 | 4-6 | 7-8 | 9");
  CHECK(program.Text({.most = kNoLimit, .edge = 100}) == "0-9");
  CHECK(program.Text({.most = kNoLimit, .edge = 90}) == "0-8 | 9");
}

TEST_CASE("what cannot share a batch has its own") {
  Program program;
  program.Add({{Key(DType::kFloat32), 10}}).Add({{Key(DType::kInt64), 10}}).Add(10);
  CHECK(program.Text({.most = kNoLimit}) == "0 2 | 1");
}

TEST_CASE("batches that share an operation are one bucket") {
  Program program;
  program.Add(10)
      .Add({{Key(DType::kFloat32), 10}, {Key(DType::kInt64), 10}})
      .Add({{Key(DType::kInt64), 10}})
      .Add(kNoLimit);
  CHECK(program.Text({.most = 1000}) == "0 1[0+1] / 1[1+1] 2 | 3");
}

TEST_CASE("a hash tells order, grouping and meaning apart") {
  std::vector<wire::Signature> meanings(3);
  for (std::size_t i = 0; i < meanings.size(); ++i) {
    meanings[i].name = Format("t{}", i);
    meanings[i].tensors = {{DType::kFloat32, 0, {4}}};
  }
  const auto meaning = [&](std::uint32_t id) -> const wire::Signature& { return meanings[id]; };
  Program program;
  program.Add(10).Add(10).Add(10);
  const auto whole = program.Buckets({.most = kNoLimit});
  const std::uint64_t hash = PlanHash(whole, meaning);
  CHECK(PlanHash(whole, meaning) == hash);
  CHECK(PlanHash(program.Buckets({.most = 20}), meaning) != hash);
  std::swap(meanings[0], meanings[1]);
  CHECK(PlanHash(whole, meaning) != hash);
  std::swap(meanings[0], meanings[1]);
  meanings[2].tensors[0].shape = {5};
  CHECK(PlanHash(whole, meaning) != hash);
  CHECK(BucketHash(hash, 0) != BucketHash(hash, 1));
}

TEST_CASE("batches are counted over rounds") {
  std::vector<wire::Bucket> buckets(3);
  buckets[0].batches.resize(1);
  buckets[1].batches.resize(2);
  buckets[2].batches.resize(1);
  const BucketCounts counts(buckets);
  CHECK(counts.Batches(0) == 0);
  CHECK(counts.Batches(1) == 1);
  CHECK(counts.Batches(2) == 3);
  CHECK(counts.Batches(3) == 4);
  CHECK(counts.Batches(5) == 7);
  CHECK(BucketCounts().Batches(5) == 0);
}

}  // namespace
}  // namespace hvl::plan
