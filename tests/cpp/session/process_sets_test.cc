// Process sets and the operations that came with them, through the public API on both data planes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <future>
#include <numeric>

#include "csrc/base/str.h"
#include "tests/support/operations.h"
#include "tests/support/worlds.h"

namespace hvl::test {
namespace {

Operation Sum(std::vector<float>& values, ProcessSetId set) {
  Operation operation = Allreduce({}, values);
  operation.process_set = set;
  return operation;
}

/// Sums the ranks in every set that this rank is in, all at once.
Complaint SumInAll(Session& session, const std::vector<std::vector<int>>& sets) {
  const int rank = session.world().rank;
  std::vector<std::vector<float>> values(sets.size(), {static_cast<float>(rank)});
  std::vector<std::pair<std::size_t, Handle>> handles;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const auto id = session.AddProcessSet(sets[i]);
    if (!id.ok()) return id.status().ToString();
    if (*session.ProcessSetRanks(*id) != sets[i]) return "other ranks";
    if (std::find(sets[i].begin(), sets[i].end(), rank) == sets[i].end()) continue;
    auto handle = session.Submit(Sum(values[i], *id));
    if (!handle.ok()) return handle.status().ToString();
    handles.emplace_back(i, *handle);
  }
  for (auto& [i, handle] : handles) {
    if (const Status status = handle.Wait(); !status.ok()) return status.ToString();
    const int expected = std::accumulate(sets[i].begin(), sets[i].end(), 0);
    if (values[i][0] != static_cast<float>(expected)) return Format("set {}: wrong sum", i);
  }
  Operation barrier;
  barrier.kind = OpKind::kBarrier;
  return session.Run(barrier).ok() ? Complaint() : "the barrier fails";
}

TEST_CASE("overlapping process sets work at the same time") {
  const std::string plane = GENERATE("local", "tcp");
  CAPTURE(plane);
  const std::vector<std::vector<int>> sets{{0, 1}, {1, 2, 3}, {0, 3}, {2}};
  const auto results = RunWorld(4, {{"HVL_CPU_OPERATIONS", plane}},
                                [&sets](Session& session) { return SumInAll(session, sets); });
  CHECK(FirstComplaint(results).empty());
}

TEST_CASE("ranks that change their process sets differently are told so, and go on") {
  const auto body = [](Session& session) -> Complaint {
    const int rank = session.world().rank;
    const auto first = session.AddProcessSet({0, 1});
    if (!first.ok()) return first.status().ToString();
    const Status status = rank == 0 ? session.AddProcessSet({0}).status()  //
                                    : session.RemoveProcessSet(*first);
    if (status.code() != StatusCode::kMismatch) return status.ToString();
    const auto other = session.AddProcessSet({1});
    if (!other.ok()) return other.status().ToString();
    if (rank == 2) return {};
    std::vector<float> values{1.0F};
    const Status sum = session.Run(Sum(values, *first));
    return sum.ok() && values[0] == 2.0F ? Complaint() : "the first set is gone: " + sum.ToString();
  };
  CHECK(FirstComplaint(RunWorld(3, {}, body)) == "");
}

/// Rank 0 gives up waiting for rank 1, which comes only then, and asks again.
Complaint ChangeAfterInterruption(Session& session, std::promise<void>& interrupted) {
  const auto at_once = [] { return true; };
  const bool first = session.world().rank == 0;
  if (first) {
    const Status given_up = session.AddProcessSet({0}, at_once).status();
    if (given_up.code() != StatusCode::kAborted) return "add: " + given_up.ToString();
    interrupted.set_value();
  } else {
    interrupted.get_future().wait();
  }
  const auto id = session.AddProcessSet({0});
  if (!id.ok()) return id.status().ToString();
  if (*id != 1) return Format("its id is {}", *id);
  if (const Status status = session.RemoveProcessSet(*id); !status.ok()) return status.ToString();
  const auto next = session.AddProcessSet({1});
  if (!next.ok()) return next.status().ToString();
  return *next == 2 ? Complaint() : Format("the next id is {}", *next);
}

TEST_CASE("a change of the process sets goes on although its caller was interrupted") {
  std::promise<void> interrupted;
  const auto results = RunWorld(2, {}, [&interrupted](Session& session) {
    return ChangeAfterInterruption(session, interrupted);
  });
  CHECK(FirstComplaint(results).empty());
}

TEST_CASE("what one rank sends to another needs no registration") {
  const std::string plane = GENERATE("local", "tcp");
  CAPTURE(plane);
  const auto body = [](Session& session) -> Complaint {
    const int rank = session.world().rank, size = session.world().size;
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    float mine = static_cast<float>(rank), theirs = -1;
    Operation send;
    send.kind = OpKind::kBroadcast;
    send.process_set = PairSet({rank, next});
    send.root_rank = rank;
    send.tensors = {{.input = &mine, .output = &mine, .shape = {}}};
    Operation receive = send;
    receive.process_set = PairSet({before, rank});
    receive.root_rank = before;
    receive.tensors[0] = {.input = nullptr, .output = &theirs, .shape = {}};
    auto sent = session.Submit(send);
    if (!sent.ok()) return sent.status().ToString();
    if (const Status status = session.Run(receive); !status.ok()) return status.ToString();
    if (const Status status = sent->Wait(); !status.ok()) return status.ToString();
    if (theirs != static_cast<float>(before)) return "received something else";
    Operation barrier;
    barrier.kind = OpKind::kBarrier;
    return session.Run(barrier).ok() ? Complaint() : "the barrier fails";
  };
  CHECK(FirstComplaint(RunWorld(3, {{"HVL_CPU_OPERATIONS", plane}}, body)).empty());
}

}  // namespace
}  // namespace hvl::test
