// Ranks that disagree, that are late, that leave: clear errors, and a session that goes on where it
// can.
#include <catch2/catch.hpp>

#include <functional>
#include <thread>

#include "csrc/base/str.h"
#include "csrc/session/agreement.h"
#include "tests/support/log_capture.h"
#include "tests/support/worlds.h"

namespace hvl::test {
namespace {

using Catch::Contains;
using std::chrono::milliseconds;

struct Tensors {
  std::vector<float> values = std::vector<float>(64, 1);
  Operation Allreduce(std::string name, Shape shape = {8}) {
    Operation operation;
    operation.name = std::move(name);
    operation.reduce_op = ReduceOp::kSum;
    operation.tensors = {
        {.input = values.data(), .output = values.data(), .shape = std::move(shape)}};
    return operation;
  }
};

/// The outcome of `operation` on this rank, and then of a good one.
struct Outcomes {
  Status bad, good;
};

/// All ranks run an operation named 'x', rank 1 with a difference.
std::vector<Outcomes> RunDiffering(const std::function<void(Operation&)>& make,
                                   const std::function<void(Operation&)>& differ) {
  auto results = RunWorld(3, {}, [&](Session& session) {
    Tensors tensors;
    Operation operation = tensors.Allreduce("x");
    make(operation);
    if (session.world().rank == 1) differ(operation);
    Outcomes outcomes;
    outcomes.bad = session.Run(operation);
    outcomes.good = session.Run(tensors.Allreduce("x"));
    return outcomes;
  });
  std::vector<Outcomes> outcomes;
  for (auto& result : results) {
    REQUIRE(result.ok());
    outcomes.push_back(result.value());
  }
  return outcomes;
}

struct Difference {
  std::vector<std::string> says;
  std::function<void(Operation&)> make, differ;
};

TEST_CASE("a difference between ranks is an error on all of them, and the next operation works") {
  const auto keep = [](Operation&) {};
  const auto broadcast = [](Operation& o) { o.kind = OpKind::kBroadcast; };
  const auto gather = [](Operation& o) {
    o.kind = OpKind::kAllgather;
    o.tensors[0].output = nullptr;
    o.tensors[0].shape = {2, 4};
  };
  const std::vector<Difference> differences{
      {{"[8]", "[9]"}, keep, [](Operation& o) { o.tensors[0].shape = {9}; }},
      {{"[8]", "[2, 4]"}, keep, [](Operation& o) { o.tensors[0].shape = {2, 4}; }},
      {{"float32", "int32"}, keep, [](Operation& o) { o.tensors[0].dtype = DType::kInt32; }},
      {{"Sum", "Max"}, keep, [](Operation& o) { o.reduce_op = ReduceOp::kMax; }},
      {{"allreduce", "broadcast"}, keep, broadcast},
      {{"scale"}, keep, [](Operation& o) { o.prescale = 2; }},
      {{"scale"}, keep, [](Operation& o) { o.postscale = 2; }},
      {{"root"}, broadcast, [](Operation& o) { o.root_rank = 2; }},
      {{"layout"}, keep, [](Operation& o) { o.tensors[0].layout = 7; }},
      {{"2", "1"}, keep, [](Operation& o) { o.tensors.push_back(o.tensors[0]); }},
      {{"4", "8"}, gather, [](Operation& o) { o.tensors[0].shape = {2, 8}; }},
      {{"dimension"}, gather, [](Operation& o) { o.tensors[0].shape = {2, 2, 2}; }},
  };
  for (const Difference& difference : differences) {
    for (const Outcomes& outcomes : RunDiffering(difference.make, difference.differ)) {
      CAPTURE(outcomes.bad.ToString());
      CHECK(outcomes.bad.code() == StatusCode::kMismatch);
      CHECK_THAT(outcomes.bad.message(), Contains("'x'") && Contains("rank"));
      for (const std::string& text : difference.says) {
        CHECK_THAT(outcomes.bad.message(), Contains(text, Catch::CaseSensitive::No));
      }
      CHECK(outcomes.good.ToString() == "OK");
    }
  }
}

TEST_CASE("an operation that a rank has not submitted is reported, and runs when it comes") {
  const auto log = std::make_shared<LogCapture>();
  net::MemoryStore store;
  const auto outcomes = RunRanks(2, [&](int rank) {
    auto session =
        StartRank(rank, 2, &store, {{"HVL_STALL_CHECK_TIME_SECONDS", "0.02"}}, log->sink());
    if (!session.ok()) return session.status();
    const TimePoint give_up = SteadyClock().Now() + kHangLimit;
    while (rank == 1 && !log->Contains("'lonely'") && SteadyClock().Now() < give_up) {
      std::this_thread::yield();
    }
    Tensors tensors;
    return (*session)->Run(tensors.Allreduce("lonely"));
  });
  for (const Status& outcome : outcomes) CHECK(outcome.ToString() == "OK");
  CHECK(log->Contains("'lonely'"));
}

TEST_CASE("an operation that a rank does not submit fails if so configured; others work") {
  const Knobs knobs{{"HVL_STALL_SHUTDOWN_TIME_SECONDS", "0.06"}};
  std::promise<void> lonely_has_failed;
  const auto outcomes = RunWorld(2, knobs, [&](Session& session) {
    Tensors tensors;
    std::vector<Status> both(1);
    if (session.world().rank == 0) {
      both[0] = session.Run(tensors.Allreduce("lonely"));
      lonely_has_failed.set_value();
    } else {
      lonely_has_failed.get_future().wait_for(kHangLimit);
    }
    // On a busy machine a rank may be late once more, which both are told alike.
    const TimePoint give_up = SteadyClock().Now() + kHangLimit;
    do {
      both.push_back(session.Run(tensors.Allreduce("together")));
    } while (both.back().code() == StatusCode::kTimeout && SteadyClock().Now() < give_up);
    return both;
  });
  for (const auto& outcome : outcomes) {
    REQUIRE(outcome.ok());
    CHECK(outcome.value().back().ToString() == "OK");
  }
  const Status& lonely = outcomes[0].value().front();
  CHECK(lonely.code() == StatusCode::kTimeout);
  CHECK_THAT(lonely.message(), Contains("lonely") && Contains("rank 1"));
}

TEST_CASE("when a rank leaves, those who wait for it are told who it was") {
  const std::string plane = GENERATE("local", "tcp");
  const int leaver = GENERATE(0, 1, 2);
  CAPTURE(plane, leaver);
  const auto results =
      RunWorld(3, {{"HVL_CPU_OPERATIONS", plane}}, [leaver](Session& session) -> Complaint {
        Tensors tensors;
        if (const Status status = session.Run(tensors.Allreduce("all")); !status.ok()) {
          return status.ToString();
        }
        if (session.world().rank == leaver) {
          session.Shutdown();
          return session.health().code() == StatusCode::kAborted ? Complaint() : "health";
        }
        const Status outcome = session.Run(tensors.Allreduce("missing"));
        if (outcome.ok()) return "an operation worked without a rank";
        const std::string who = Format("rank {}", leaver);
        return outcome.message().find(who) != std::string::npos ? Complaint() : outcome.ToString();
      });
  CHECK(FirstComplaint(results) == "");
}

TEST_CASE("what is under way when a session ends is finished with Aborted") {
  const auto results = RunWorld(2, {}, [](Session& session) -> Complaint {
    if (session.world().rank == 1) return {};  // its session stays, and submits nothing
    Tensors tensors;
    auto handle = session.Submit(tensors.Allreduce("never"));
    if (!handle.ok()) return handle.status().ToString();
    if (handle->WaitFor(milliseconds(1)).code() != StatusCode::kTimeout) return "no timeout";
    session.Shutdown();
    session.Shutdown();
    if (!handle->done()) return "not done";
    if (handle->Wait().code() != StatusCode::kAborted) return handle->Wait().ToString();
    const Status late = session.Run(tensors.Allreduce("late"));
    return late.code() == StatusCode::kAborted ? Complaint() : late.ToString();
  });
  CHECK(FirstComplaint(results) == "");
}

TEST_CASE("ranks that disagree on a knob do not start, and say which") {
  net::MemoryStore store;
  const auto errors = RunRanks(3, [&](int rank) {
    const Knobs knobs{{"HVL_FUSION_THRESHOLD", rank == 1 ? "0" : "1024"}};
    return StartRank(rank, 3, &store, knobs).status();
  });
  for (const Status& error : errors) {
    CHECK(error.code() == StatusCode::kMismatch);
    CHECK_THAT(error.message(), Contains("HVL_FUSION_THRESHOLD is 0 on rank 1 and 1024 on "
                                         "ranks 0, 2"));
  }
}

TEST_CASE("two ranks that say they have the same place on a host do not start") {
  net::MemoryStore store;
  const auto errors = RunRanks(3, [&](int rank) {
    const Knobs knobs{{"HVL_LOCAL_RANK", rank == 2 ? "0" : std::to_string(rank)},
                      {"HVL_LOCAL_SIZE", "3"}};
    return StartRank(rank, 3, &store, knobs).status();
  });
  for (const Status& error : errors) {
    CHECK(error.code() == StatusCode::kMismatch);
    CHECK_THAT(error.message(), Contains("ranks 0 and 2 both have HVL_LOCAL_RANK=0 and"));
  }
}

TEST_CASE("descriptions of ranks are compared knob by knob, the version first") {
  const auto config = ConfigOf(0, 4, {});
  REQUIRE(config.ok());
  const std::string own = session::DescribeRank(*config);
  CHECK_THAT(own, Contains("HVL_FUSION_THRESHOLD=") && Contains("version="));
  std::vector<std::string> all;
  for (int rank = 0; rank < 4; ++rank) {
    all.push_back(session::DescribeRank(ConfigOf(rank, 4, {}).value()));
  }
  CHECK(session::CheckAgreement(all).ok());

  const std::size_t version_at = own.find("version=") + 8;
  const std::string other_version =
      Format("{}9.9.9{}", own.substr(0, version_at), own.substr(own.find('\n')));
  const Status version = session::CheckAgreement(std::vector{own, own, other_version, own});
  CHECK(version.code() == StatusCode::kMismatch);
  CHECK_THAT(version.message(), Contains("on ranks 0, 1, 3") && Contains("on rank 2"));

  const Status unknown = session::CheckAgreement(std::vector{own, own + "HVL_NEW=1\n"});
  CHECK_THAT(unknown.message(), Contains("HVL_NEW is (not known) on rank 0 and 1 on rank 1"));
  const Status nonsense = session::CheckAgreement(std::vector<std::string>{own, "=\n==\nx"});
  CHECK(nonsense.code() == StatusCode::kMismatch);
}

}  // namespace
}  // namespace hvl::test
