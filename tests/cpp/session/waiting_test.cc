// Every way to wait, mixed at random by several threads: no wake-up may get lost. A lost one shows
// as a hang, most of all where nobody waits and only the runtime's own threads can go on.
#include <catch2/catch.hpp>

#include <random>
#include <thread>

#include "csrc/base/str.h"
#include "tests/support/operations.h"
#include "tests/support/worlds.h"

namespace hvl::test {
namespace {

using std::chrono::microseconds;

enum class Way { kRun, kWait, kWaitInSlices, kAskUntilDone, kCount };

Status AskUntilDone(const Handle& handle, std::mt19937_64& random) {
  const TimePoint give_up = SteadyClock().Now() + kHangLimit;
  while (!handle.done()) {
    if (SteadyClock().Now() > give_up) return Status(StatusCode::kTimeout, "a wake-up was lost");
    std::this_thread::sleep_for(microseconds(random() % 300));
  }
  return Handle(handle).Wait();
}

Status WaitInSlices(Handle& handle, std::mt19937_64& random) {
  const TimePoint give_up = SteadyClock().Now() + kHangLimit;
  for (;;) {
    const Status status = handle.WaitFor(microseconds(random() % 20'000));
    if (status.code() != StatusCode::kTimeout || SteadyClock().Now() > give_up) return status;
  }
}

Status Reduce(Session& session, const std::string& name, std::vector<float>& values,
              std::mt19937_64& random) {
  Operation operation = Allreduce(name, values);
  const auto way = static_cast<Way>(random() % static_cast<unsigned>(Way::kCount));
  if (way == Way::kRun) return session.Run(std::move(operation));
  HVL_ASSIGN_OR_RETURN(Handle handle, session.Submit(std::move(operation), false));
  if (way == Way::kWait) return handle.WaitFor(kHangLimit);
  if (way == Way::kWaitInSlices) return WaitInSlices(handle, random);
  return AskUntilDone(handle, random);
}

/// Threads of all ranks run the same operations, each at its own pace and in its own way.
Complaint MixWays(Session& session, std::uint64_t seed) {
  std::vector<std::future<Status>> threads;
  for (unsigned thread = 0; thread < 3; ++thread) {
    threads.push_back(std::async(std::launch::async, [&session, seed, thread]() -> Status {
      const auto rank = static_cast<std::uint64_t>(session.world().rank);
      std::mt19937_64 random(seed * 100 + rank * 10 + thread);
      for (int i = 0; i < 120; ++i) {
        // Every size has its way: fused, alone, too large for a thread with a time limit.
        std::vector<float> values(i % 10 == 0 ? 100'000 : 1, 1);
        HVL_RETURN_IF_ERROR(Reduce(session, Format("{}.{}", thread, i), values, random));
        if (values[0] != static_cast<float>(session.world().size)) {
          return Status(StatusCode::kInternal, "wrong sum");
        }
        // Around the time for which the coordinator thread stays parked.
        if (random() % 4 == 0) std::this_thread::sleep_for(microseconds(random() % 500));
      }
      return Status::Ok();
    }));
  }
  for (auto& thread : threads) {
    if (const Status status = thread.get(); !status.ok()) return status.ToString();
  }
  return {};
}

TEST_CASE("no wake-up is lost, however threads wait") {
  const std::string spin = GENERATE("0", "50", "1000");
  const int size = GENERATE(1, 2, 3);
  const std::uint64_t seed = Catch::rngSeed();
  CAPTURE(spin, size, seed);
  const auto results = RunWorld(size, {{"HVL_SPIN", spin}},
                                [seed](Session& session) { return MixWays(session, seed); });
  CHECK(FirstComplaint(results) == "");
}

}  // namespace
}  // namespace hvl::test
