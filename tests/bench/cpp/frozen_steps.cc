// Steps of a program whose plan is frozen: many small tensors, submitted and then waited for.
// Prints what each rank has sent meanwhile; tests/bench/test_frozen.py counts its system calls.
// Usage: frozen_steps [steps] [tensors]
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/base/str.h"
#include "tests/bench/cpp/process_world.h"
#include "tests/support/operations.h"

namespace hvl::bench {
namespace {

constexpr int kRanks = 2;
constexpr int kStepsToFreeze = 20;

struct Tensor {
  std::string name;
  std::vector<float> values = std::vector<float>(256);
};

void Step(Session& session, std::vector<Tensor>& tensors) {
  std::vector<Handle> handles;
  handles.reserve(tensors.size());
  for (Tensor& tensor : tensors) {
    auto handle = session.Submit(test::Allreduce(tensor.name, tensor.values));
    Require(handle.status());
    handles.push_back(*std::move(handle));
  }
  for (Handle& handle : handles) Require(handle.Wait());
}

void Run(Session& session, int steps, int count) {
  std::vector<Tensor> tensors(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].name = Format("gradient.{}", i);
  for (int step = 0; step < kStepsToFreeze; ++step) Step(session, tensors);
  const SessionCounters before = session.counters();
  for (int step = 0; step < steps; ++step) Step(session, tensors);
  const SessionCounters after = session.counters();
  // A rank that has ended leaves, and its peers answer that: not before all have counted.
  Step(session, tensors);
  std::printf(
      "freezes %llu thaws %llu frames %llu batches %llu\n",
      static_cast<unsigned long long>(after.plan_freezes),
      static_cast<unsigned long long>(after.plan_thaws),
      static_cast<unsigned long long>(after.control_frames_sent - before.control_frames_sent),
      static_cast<unsigned long long>(after.batches_dispatched - before.batches_dispatched));
}

int Number(int count, char** arguments, int index, int fallback) {
  int value = fallback;
  if (count > index) {
    const char* const text = arguments[index];
    std::from_chars(text, text + std::strlen(text), value);
  }
  return value;
}

int Main(int argc, char** argv) {
  const int steps = Number(argc, argv, 1, 100);
  const int tensors = Number(argc, argv, 2, 1000);
  const bool well =
      ForkRanks(kRanks, [&](int rank, const std::string& address, const net::Secret& secret) {
        Run(*StartRank(rank, kRanks, address, secret), steps, tensors);
      });
  return well ? 0 : 1;
}

}  // namespace
}  // namespace hvl::bench

int main(int argc, char** argv) { return hvl::bench::Main(argc, argv); }
