// What one operation costs between processes of this host, seen from C++: prints medians and tails,
// asserts nothing. Usage: engine_latency [ranks] [repetitions]; knobs (HVL_...) from the
// environment.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "csrc/base/str.h"
#include "horovodlite/session.h"
#include "tests/bench/cpp/process_world.h"
#include "tests/support/operations.h"

namespace hvl {
namespace {

using Clock = std::chrono::steady_clock;
using Micros = std::chrono::duration<double, std::micro>;

double MicrosSince(Clock::time_point start) { return Micros(Clock::now() - start).count(); }

using bench::Require;

/// Prints on rank 0.
void Report(const Session& session, const char* what, std::vector<double> micros,
            const std::string& note = {}) {
  if (session.world().rank != 0) return;
  std::sort(micros.begin(), micros.end());
  const auto at = [&micros](double share) {
    return micros[static_cast<std::size_t>(share * static_cast<double>(micros.size() - 1))];
  };
  std::printf("%-44s %10.2f %10.2f %10.2f %10.2f %s\n", what, at(0), at(0.5), at(0.9), at(0.99),
              note.c_str());
  std::fflush(stdout);
}

/// Times `body` on this rank, each time after a barrier and `pause`.
std::vector<double> Measure(Session& session, int repetitions, std::chrono::microseconds pause,
                            const std::function<void()>& body) {
  std::vector<double> micros;
  for (int i = -repetitions / 10 - 1; i < repetitions; ++i) {
    Operation barrier;
    barrier.kind = OpKind::kBarrier;
    barrier.name = "measure";
    if (pause.count() > 0) {
      Require(session.Run(barrier));
      ::usleep(static_cast<useconds_t>(pause.count()));
    }
    const Clock::time_point start = Clock::now();
    body();
    if (i >= 0) micros.push_back(MicrosSince(start));
  }
  return micros;
}

void MeasureSmall(Session& session, int repetitions) {
  std::vector<float> one(1);
  const auto none = std::chrono::microseconds(0);
  const auto run = [&] { Require(session.Run(test::Allreduce("small", one))); };
  Report(session, "Run, 4 B, back to back", Measure(session, repetitions, none, run));
  Report(session, "Run, 4 B, after 1 ms of rest",
         Measure(session, std::min(repetitions, 500), std::chrono::milliseconds(1), run));
  const auto run_with_limit = [&] {
    auto handle = session.Submit(test::Allreduce("small", one), true);
    Require(handle.status());
    Require(handle->WaitFor(std::chrono::milliseconds(100)));
  };
  Report(session, "Submit + WaitFor(100 ms), 4 B",
         Measure(session, repetitions, none, run_with_limit));
  const auto run_async = [&] {
    auto handle = session.Submit(test::Allreduce("small", one));
    Require(handle.status());
    Require(handle->Wait());
  };
  Report(session, "Submit (asynchronous) + Wait, 4 B",
         Measure(session, repetitions, none, run_async));
  const auto barrier = [&] {
    Operation operation;
    operation.kind = OpKind::kBarrier;
    operation.name = "barrier";
    Require(session.Run(operation));
  };
  Report(session, "Run, barrier", Measure(session, repetitions, none, barrier));
}

void MeasureBurst(Session& session, int repetitions) {
  constexpr int kTensors = 1000;
  std::vector<std::vector<float>> tensors(kTensors, std::vector<float>(256));
  std::vector<std::string> names;
  for (int i = 0; i < kTensors; ++i) names.push_back(Format("gradient.{}", i));
  std::vector<double> submit_micros;
  const auto burst = [&] {
    const Clock::time_point start = Clock::now();
    std::vector<Handle> handles;
    handles.reserve(kTensors);
    for (std::size_t i = 0; i < kTensors; ++i) {
      auto handle = session.Submit(test::Allreduce(names[i], tensors[i]));
      Require(handle.status());
      handles.push_back(*handle);
    }
    submit_micros.push_back(MicrosSince(start));
    for (Handle& handle : handles) Require(handle.Wait());
  };
  const std::uint64_t before = session.counters().batches_dispatched;
  const auto micros = Measure(session, repetitions, std::chrono::microseconds(100), burst);
  const std::uint64_t batches = session.counters().batches_dispatched - before;
  const auto rounds = static_cast<double>(submit_micros.size());
  Report(session, "1000 x 1 KiB, submit all, wait for all", micros,
         Format("{:.1f} batches", static_cast<double>(batches) / rounds - 1));
  Report(session, "  of which submitting", submit_micros);
}

void MeasureLarge(Session& session, int repetitions) {
  for (const std::size_t mebibytes : {1, 64}) {
    const std::size_t bytes = mebibytes << 20;
    std::vector<float> plain(bytes / sizeof(float), 1.0F);
    const auto run = [&] { Require(session.Run(test::Allreduce("large", plain))); };
    Report(session, Format("Run, {} MiB", mebibytes).c_str(),
           Measure(session, repetitions, std::chrono::microseconds(0), run));
    auto shared = session.Allocate(bytes);
    Require(shared.status());
    Operation operation = test::Allreduce("arena", plain);
    operation.tensors[0].input = operation.tensors[0].output = shared->data;
    const auto run_shared = [&] { Require(session.Run(operation)); };
    Report(session, Format("Run, {} MiB, memory from Allocate", mebibytes).c_str(),
           Measure(session, repetitions, std::chrono::microseconds(0), run_shared));
  }
}

void RunRank(int rank, int size, int repetitions, const std::string& address,
             const net::Secret& secret) {
  const Clock::time_point start = Clock::now();
  std::unique_ptr<Session> session = bench::StartRank(rank, size, address, secret);
  if (rank == 0) {
    std::printf("%d ranks; create: %.2f ms\n%-44s %10s %10s %10s %10s\n", size,
                MicrosSince(start) / 1000, "microseconds", "min", "median", "p90", "p99");
  }
  MeasureSmall(*session, repetitions);
  MeasureBurst(*session, std::max(1, repetitions / 100));
  MeasureLarge(*session, std::max(1, repetitions / 100));
  const Clock::time_point stop = Clock::now();
  session.reset();
  if (rank == 0) std::printf("shutdown: %.2f ms\n", MicrosSince(stop) / 1000);
}

int Number(const char* text, int fallback) {
  int value = fallback;
  const std::string_view view(text);
  std::from_chars(view.data(), view.data() + view.size(), value);
  return std::max(1, value);
}

int Main(int argument_count, char** arguments) {
  const int size = argument_count > 1 ? Number(arguments[1], 2) : 2;
  const int repetitions = argument_count > 2 ? Number(arguments[2], 5000) : 5000;
  const bool well =
      bench::ForkRanks(size, [&](int rank, const std::string& address, const net::Secret& secret) {
        RunRank(rank, size, repetitions, address, secret);
      });
  return well ? 0 : 1;
}

}  // namespace
}  // namespace hvl

int main(int argument_count, char** arguments) { return hvl::Main(argument_count, arguments); }
