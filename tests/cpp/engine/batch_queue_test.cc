// What becomes of batches of a frozen plan when it thaws while one is in the executor role's hands.
#include "csrc/engine/batch_queue.h"

#include <catch2/catch.hpp>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace hvl::engine {
namespace {

constexpr std::uint32_t kPlan = 3;
constexpr std::uint64_t kBase = 100;  // the last sequence before the plan
constexpr std::size_t kAnyBytes = std::numeric_limits<std::size_t>::max();

/// Buckets of one batch each: the k-th has gate k.
void PushBuckets(BatchQueue& queue, std::uint64_t count) {
  for (std::uint64_t bucket = 1; bucket <= count; ++bucket) {
    Work work;
    work.plan.sequence = kBase + bucket;
    work.plan.gate = plan::Gate{kPlan, bucket, 0};
    const bool accepted = queue.Push(std::move(work));
    REQUIRE(accepted);
  }
}

/// As the coordinator role does when all ranks have started the first `started` buckets only.
void Thaw(BatchQueue& queue, std::uint64_t started) {
  queue.Withdraw(kBase + started, GateNumber(kPlan, started + 1), GateNumber(kPlan + 1, 0) - 1);
}

/// The executor role takes the n-th batch; those before have run.
Work Take(BatchQueue& queue, int n) {
  std::optional<Work> work;
  for (int i = 0; i < n; ++i) work = queue.Pop(kAnyBytes);
  REQUIRE(work.has_value());
  return *std::move(work);
}

void PutBack(BatchQueue& queue, Work work) {
  const bool is_open = !queue.PutBack(std::move(work));
  CHECK(is_open);
}

/// Sequences of the batches that are left, in their order.
std::vector<std::uint64_t> Drain(BatchQueue& queue) {
  std::vector<std::uint64_t> sequences;
  while (const std::optional<Work> work = queue.Pop(kAnyBytes)) {
    sequences.push_back(work->plan.sequence);
  }
  return sequences;
}

TEST_CASE("a batch that a thaw keeps comes first again when it is put back") {
  BatchQueue queue;
  PushBuckets(queue, 5);
  SECTION("before the thaw") {
    PutBack(queue, Take(queue, 1));  // its gate is still closed
    Thaw(queue, 3);
  }
  SECTION("after it") {
    Work work = Take(queue, 1);
    Thaw(queue, 3);
    PutBack(queue, std::move(work));
  }
  CHECK(queue.has_ready());
  CHECK(Drain(queue) == std::vector<std::uint64_t>{kBase + 1, kBase + 2, kBase + 3});
}

TEST_CASE("a batch that a thaw withdraws is gone when it is put back") {
  BatchQueue queue;
  PushBuckets(queue, 5);
  Work work = Take(queue, 3);
  Thaw(queue, 2);
  PutBack(queue, std::move(work));
  CHECK_FALSE(queue.has_ready());
  CHECK(Drain(queue).empty());
}

TEST_CASE("a later plan is not withdrawn with an earlier one") {
  BatchQueue queue;
  PushBuckets(queue, 2);
  Thaw(queue, 0);
  Work work;
  work.plan.sequence = kBase + 1;
  work.plan.gate = plan::Gate{kPlan + 1, 1, 0};
  PutBack(queue, std::move(work));
  CHECK(Drain(queue) == std::vector<std::uint64_t>{kBase + 1});
}

}  // namespace
}  // namespace hvl::engine
