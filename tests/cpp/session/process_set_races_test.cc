// Process sets that come and go while other threads use them, join and leave: what is legal works,
// what is not is an error on every rank, and nothing hangs.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <random>
#include <thread>

#include "csrc/base/str.h"
#include "tests/support/operations.h"
#include "tests/support/process_usage.h"
#include "tests/support/worlds.h"

namespace hvl::test {
namespace {

bool Says(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

/// Sums ones over a process set; Internal when the sum is wrong.
Status SumOnes(Session& session, ProcessSetId set, std::string name, std::size_t count = 1) {
  HVL_ASSIGN_OR_RETURN(const std::vector<int> ranks, session.ProcessSetRanks(set));
  std::vector<float> values(count, 1);
  Operation operation = Allreduce(std::move(name), values);
  operation.process_set = set;
  HVL_RETURN_IF_ERROR(session.Run(std::move(operation)));
  if (values == std::vector(count, static_cast<float>(ranks.size()))) return Status::Ok();
  return {StatusCode::kInternal, "wrong sum"};
}

Status Join(Session& session) {
  Operation operation;
  operation.kind = OpKind::kJoin;
  return session.Run(std::move(operation));
}

bool Includes(Session& session, ProcessSetId set) {
  const Result<std::vector<int>> ranks = session.ProcessSetRanks(set);
  if (!ranks.ok()) return false;
  return std::find(ranks.value().begin(), ranks.value().end(), session.world().rank) !=
         ranks.value().end();
}

/// One thread of every rank runs operations of a set, again when the removal of the set was in
/// their way; another one tries to remove it until that works.
Complaint RemoveInFlight(Session& session) {
  constexpr int kOperations = 300;
  const Result<ProcessSetId> set = session.AddProcessSet({0, 1});
  if (!set.ok()) return set.status().ToString();
  auto user = std::async(std::launch::async, [&session, set = *set]() -> Complaint {
    for (int i = 0; Includes(session, set) && i < kOperations;) {
      const Status status = SumOnes(session, set, Format("step.{}", i));
      if (Says(status, "does not exist")) return {};  // on all members at the same step
      if (status.ok()) ++i;
      if (!status.ok() && !Says(status, "is being removed")) return status.ToString();
    }
    return {};
  });
  Complaint complaint;
  for (;;) {
    const Status status = session.RemoveProcessSet(*set);
    if (status.ok()) break;
    if (Says(status, "is still waiting for")) continue;
    complaint = status.ToString();
    break;
  }
  Complaint used = user.get();
  if (!used.empty()) return used;
  if (!complaint.empty()) return complaint;
  return SumOnes(session, kWorldSet, "after").ok() ? Complaint() : "the world does not work";
}

TEST_CASE("a set that is removed while another thread uses it goes between two operations") {
  const std::string plane = GENERATE("local", "tcp");
  CAPTURE(plane);
  for (int round = 0; round < 20; ++round) {
    CHECK(FirstComplaint(RunWorld(3, {{"HVL_CPU_OPERATIONS", plane}}, RemoveInFlight)) == "");
  }
}

TEST_CASE("sets that two threads add in any order get the same ids everywhere, or errors") {
  const std::string plane = GENERATE("local", "tcp");
  CAPTURE(plane);
  const auto body = [](Session& session) -> Complaint {
    std::vector<std::future<Result<ProcessSetId>>> threads;
    for (const std::vector<int>& ranks : {std::vector{0, 1}, std::vector{1, 2}}) {
      threads.push_back(std::async(std::launch::async, [&session, ranks] {
        Result<ProcessSetId> added = session.AddProcessSet(ranks);
        while (added.status().code() == StatusCode::kMismatch) added = session.AddProcessSet(ranks);
        return added;
      }));
    }
    std::vector<ProcessSetId> sets;
    for (auto& thread : threads) {
      const Result<ProcessSetId> added = thread.get();
      if (!added.ok()) return added.status().ToString();
      sets.push_back(*added);
    }
    for (const ProcessSetId set : sets) {
      if (!Includes(session, set)) continue;
      if (const Status status = SumOnes(session, set, "x"); !status.ok()) return status.ToString();
    }
    return SumOnes(session, kWorldSet, "y").ok() ? Complaint() : "the world does not work";
  };
  for (int round = 0; round < 30; ++round) {
    CHECK(FirstComplaint(RunWorld(3, {{"HVL_CPU_OPERATIONS", plane}}, body)) == "");
  }
}

TEST_CASE("ranks that have joined go on in process sets, from other threads") {
  const std::string plane = GENERATE("local", "tcp");
  CAPTURE(plane);
  const auto body = [](Session& session) -> Complaint {
    const Result<ProcessSetId> set = session.AddProcessSet({0, 2});
    if (!set.ok()) return set.status().ToString();
    auto others = std::async(std::launch::async, [&session, set = *set]() -> Status {
      for (int i = 0; Includes(session, set) && i < 200; ++i) {
        HVL_RETURN_IF_ERROR(SumOnes(session, set, Format("set.{}", i % 7), i % 50 == 0 ? 9999 : 3));
      }
      return Status::Ok();
    });
    const int rank = session.world().rank;
    Status status;
    for (int epoch = 0; status.ok() && epoch < 5; ++epoch) {
      // Ranks have different numbers of steps; the last one has all the sums to itself.
      for (int step = 0; status.ok() && step < 10 * rank; ++step) {
        std::vector<float> one(1, 1);
        status = session.Run(Allreduce(Format("step.{}", step % 3), one));
        const int left = step / 10 + 1;  // the ranks before have ended
        const auto most = static_cast<float>(session.world().size - left);
        if (status.ok() && one[0] != most) status = {StatusCode::kInternal, "wrong sum"};
      }
      if (status.ok()) status = Join(session);
    }
    const Status other = others.get();
    if (!status.ok()) return status.ToString();
    return other.ok() ? Complaint() : other.ToString();
  };
  CHECK(FirstComplaint(RunWorld(3, {{"HVL_CPU_OPERATIONS", plane}}, body)) == "");
}

/// What every rank does until something fails, which then fails everywhere.
Status Loop(const std::function<Status(int)>& step) {
  for (int i = 0;; ++i) {
    const Status status = step(i);
    if (status.code() == StatusCode::kInvalidArgument) continue;  // a set that is gone or not there
    if (!status.ok()) return status;
  }
}

/// Three threads: one adds and removes sets, one uses the world, one a set that stays. One rank
/// leaves in the middle of it.
Complaint LeaveDuringAll(Session& session, int leaver, std::uint64_t seed) {
  const auto told = [&session, leaver](const Status& status) {
    return status.code() == StatusCode::kAborted &&
           (session.world().rank == leaver || Says(status, Format("rank {} ", leaver)));
  };
  const Result<ProcessSetId> lasting = session.AddProcessSet({0, 1});
  // A slow rank may hear of the end before it is done with this.
  if (!lasting.ok()) return told(lasting.status()) ? Complaint() : lasting.status().ToString();
  std::vector<std::future<Status>> threads;
  const auto start = [&threads](std::function<Status(int)> step) {
    threads.push_back(
        std::async(std::launch::async, [step = std::move(step)] { return Loop(step); }));
  };
  start([&session](int) -> Status {
    HVL_ASSIGN_OR_RETURN(const ProcessSetId set, session.AddProcessSet({1, 2}));
    return session.RemoveProcessSet(set);
  });
  start([&session](int i) {
    return SumOnes(session, kWorldSet, Format("world.{}", i % 5), i % 20 == 0 ? 99'999 : 5);
  });
  if (session.world().rank < 2) {
    start([&session, set = *lasting](int i) { return SumOnes(session, set, Format("{}", i % 5)); });
  }
  if (session.world().rank == leaver) {
    std::mt19937_64 random(seed);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    session.Shutdown();
  }
  for (auto& thread : threads) {
    const Status status = thread.get();
    if (!told(status)) return status.ToString();
  }
  return {};
}

TEST_CASE("a rank that leaves in the middle of everything is named by all threads of the others") {
  const std::string plane = GENERATE("local", "tcp");
  const int leaver = GENERATE(0, 1, 2);
  CAPTURE(plane, leaver);
  for (std::uint64_t seed = Catch::rngSeed(); seed < Catch::rngSeed() + 20; ++seed) {
    CAPTURE(seed);
    CHECK(FirstComplaint(RunWorld(3, {{"HVL_CPU_OPERATIONS", plane}}, [&](Session& session) {
            return LeaveDuringAll(session, leaver, seed);
          })) == "");
  }
}

TEST_CASE("who uses only a set that the leaving rank is not in is told as well") {
  const std::string plane = GENERATE("local", "tcp");
  CAPTURE(plane);
  const auto body = [](Session& session) -> Complaint {
    const Result<ProcessSetId> set = session.AddProcessSet({0, 1});
    if (!set.ok()) return set.status().ToString();
    if (session.world().rank == 2) {
      session.Shutdown();
      return {};
    }
    const Status status =
        Loop([&session, set = *set](int i) { return SumOnes(session, set, Format("{}", i)); });
    const bool told = status.code() == StatusCode::kAborted && status.culprit_rank() == 2 &&
                      Says(status, "not even in a process set without it") &&
                      Says(status, "Let all ranks shut down together");
    return told ? Complaint() : status.ToString();
  };
  CHECK(FirstComplaint(RunWorld(3, {{"HVL_CPU_OPERATIONS", plane}}, body)) == "");
}

TEST_CASE("115 sessions with process sets leave nothing behind") {
  const std::string plane = GENERATE("local", "tcp");
  CAPTURE(plane);
  ProcessUsage before;
  net::MemoryStore store;
  for (int i = 0; i < 115; ++i) {
    const auto complaints = RunRanks(3, [&](int rank) -> Complaint {
      auto session = StartRank(rank, 3, &store, {{"HVL_CPU_OPERATIONS", plane}});
      if (!session.ok()) return session.status().ToString();
      for (const std::vector<int>& ranks :
           {std::vector{0, 1}, std::vector{1, 2}, std::vector{i % 3}}) {
        const Result<ProcessSetId> set = (*session)->AddProcessSet(ranks);
        if (!set.ok()) return set.status().ToString();
        if (!Includes(**session, *set)) continue;
        const Status status = SumOnes(**session, *set, "x", 1000);
        if (!status.ok()) return status.ToString();
      }
      const Status status = SumOnes(**session, kWorldSet, "last");  // before anybody leaves
      return status.ok() ? Complaint() : status.ToString();
    });
    REQUIRE(complaints == std::vector<Complaint>(3));
    if (i == 10) before = ProcessUsage::Now();  // by now everything that is kept is there
  }
  const ProcessUsage after = ProcessUsage::Now();
  CHECK(after.threads == before.threads);
  CHECK(after.descriptors == before.descriptors);
}

}  // namespace
}  // namespace hvl::test
