// The paths that every tensor of every step takes, one by one, so that callgrind can count their
// instructions: run it as `valgrind --tool=callgrind --instr-atstart=no hot_paths`. Each count is
// dumped under its name and by what it is to be divided. tests/bench/instructions.py compares them
// with the committed ones; without valgrind nothing is counted.
#include <valgrind/callgrind.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/config/config.h"
#include "csrc/session/session_impl.h"
#include "csrc/tensor/reduce.h"
#include "tests/bench/cpp/plan_world.h"
#include "tests/support/operations.h"

namespace hvl::bench {
namespace {

constexpr int kRanks = 2;
constexpr int kTensors = 1000;
constexpr int kBursts = 4;
constexpr int kBurstsToFreeze = 10;  // after so many a plan has frozen, see HVL_FREEZE_AFTER

template <typename Body>
void Count(const std::string& name, int divisor, const Body& body) {
  const std::string label = Format("{} / {}", name, divisor);
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
  body();
  CALLGRIND_DUMP_STATS_AT(label.c_str());
  CALLGRIND_STOP_INSTRUMENTATION;
}

// Per tensor and rank, from the second burst on, when all names are known.
void CountNegotiation() {
  PlanWorld world(kRanks, kTensors);
  for (int burst = 0; burst < kBursts; ++burst) {
    const bool counted = burst == kBursts - 1;
    const auto part = [&](const char* name, void (PlanWorld::*run)()) {
      const auto body = [&] { (world.*run)(); };
      if (counted) {
        Count(Format("plan {}", name), kRanks * kTensors, body);
      } else {
        body();
      }
    };
    world.Prepare();
    part("submit", &PlanWorld::Submit);
    part("announce", &PlanWorld::Announce);
    part("coordinate", &PlanWorld::Coordinate);
    part("apply", &PlanWorld::Apply);
    world.Finish();
  }
}

// Per KiB of the result, for two ranks. The vectors are those that valgrind knows: AVX2.
void CountKernels() {
  constexpr std::size_t kBytes = 64 << 10;
  std::vector<std::byte> memory(2 * kBytes);
  const std::array<const void*, 2> inputs{memory.data(), memory.data() + kBytes};
  const auto count_kernel = [&](const tensor::ReduceSpec& spec, const std::string& name) {
    const auto count = static_cast<std::int64_t>(kBytes / DTypeBytes(spec.dtype));
    Count(name, kBytes >> 10, [&] { tensor::Reduce(spec, inputs, memory.data(), count); });
  };
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16,
                            DType::kInt64, DType::kInt32, DType::kInt16, DType::kInt8}) {
    tensor::ReduceSpec spec{.dtype = dtype, .rank_count = 2};
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      spec.op = op;
      count_kernel(spec, Format("reduce {} {}", DTypeName(dtype), ReduceOpName(op)));
    }
    spec.op = ReduceOp::kSum;
    spec.prescale = 0.5;
    count_kernel(spec, Format("reduce {} scaled sum", DTypeName(dtype)));
  }
}

std::unique_ptr<Session> WorldOfOne() {
  config::MapEnv environment({{"HVL_RANK", "0"}, {"HVL_SIZE", "1"}});
  auto config = config::Config::Parse(environment, nullptr);
  Require(config.status());
  auto session = session::CreateSession(*config, nullptr, net::Secret::Random(), StderrSink());
  Require(session.status());
  return std::move(session).value();
}

// Per operation, in a world of one: what the engine takes besides negotiation and data. One after
// the other, then many at a time.
void CountEngine() {
  std::vector<float> values(256);
  const std::unique_ptr<Session> alone = WorldOfOne();
  const auto run = [&] {
    for (int i = 0; i < kTensors; ++i) Require(alone->Run(test::Allreduce("gradient", values)));
  };
  run();
  Count("engine run", kTensors, run);

  // No thread is woken for them, so that each time the same thread does the same work.
  const std::unique_ptr<Session> together = WorldOfOne();
  std::vector<std::string> names;
  for (int i = 0; i < kTensors; ++i) names.push_back(Format("module.layer{}.block.conv.weight", i));
  std::vector<Handle> handles;
  const auto burst = [&] {
    handles.clear();
    for (const std::string& name : names) {
      auto handle = together->Submit(test::Allreduce(name, values), /*caller_waits=*/true);
      Require(handle.status());
      handles.push_back(std::move(handle).value());
    }
    for (Handle& handle : handles) Require(handle.Wait());
  };
  for (int i = 0; i < kBurstsToFreeze; ++i) burst();
  Count("engine burst", kTensors, burst);
}

// Per tensor of one operation of many.
void CountGroup() {
  const std::unique_ptr<Session> alone = WorldOfOne();
  std::vector<float> values(256);
  const auto group = [&] {
    Operation operation = test::Allreduce("group", values);
    operation.tensors.resize(kTensors, operation.tensors.front());
    Require(alone->Run(std::move(operation)));
  };
  for (int i = 0; i < kBurstsToFreeze; ++i) group();
  Count("engine group", kTensors, group);
}

}  // namespace
}  // namespace hvl::bench

int main() {
  hvl::bench::CountNegotiation();
  hvl::bench::CountKernels();
  hvl::bench::CountEngine();
  hvl::bench::CountGroup();
  return 0;
}
