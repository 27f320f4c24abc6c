#include "tests/cpp/sim/scenario.h"

#include <algorithm>
#include <iterator>

#include "csrc/base/str.h"
#include "tests/cpp/sim/random.h"

namespace hvl::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

int DrawSize(Random& random) {
  const int dice = random.Between(0, 99);
  if (dice < 60) return random.Between(2, 4);
  if (dice < 85) return random.Between(5, 12);
  if (dice < 97) return random.Between(13, 33);
  return random.Between(34, 64);
}

wire::Signature DrawSignature(Random& random, const std::string& name, int size) {
  wire::Signature signature;
  signature.name = name;
  signature.kind = static_cast<OpKind>(random.Percent(60) ? 0 : random.Between(1, 3));
  if (signature.kind == OpKind::kBroadcast) signature.root_rank = random.Between(0, size - 1);
  if (signature.kind == OpKind::kAllreduce) {
    signature.reduce_op = random.Pick<ReduceOp>({ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kMax});
    signature.prescale = random.Percent(10) ? 0.5 : 1.0;
  }
  if (signature.kind == OpKind::kBarrier) return signature;
  const int tensors = random.Percent(80) ? 1 : random.Between(2, 5);
  for (int i = 0; i < tensors; ++i) {
    wire::TensorSignature tensor;
    tensor.dtype = random.Pick<DType>({DType::kFloat32, DType::kFloat32, DType::kInt64});
    tensor.shape = random.Pick<Shape>({{}, {1}, {0}, {16}, {3, 5}, {200}});
    signature.tensors.push_back(std::move(tensor));
  }
  return signature;
}

Operation DrawOperation(Random& random, std::size_t name_index, wire::Signature signature,
                        bool transient, int size) {
  Operation operation{name_index, std::move(signature), transient, {}};
  if (operation.signature.kind != OpKind::kAllgather) return operation;
  operation.first_dims.resize(static_cast<std::size_t>(size));
  for (auto& dims : operation.first_dims) {
    for (std::size_t i = 0; i < operation.signature.tensors.size(); ++i) {
      dims.push_back(random.Between(0, 6));
    }
  }
  return operation;
}

/// A change in one property.
wire::Signature Stray(Random& random, wire::Signature signature, int size) {
  switch (random.Between(0, 5)) {
    case 0:
      signature.kind = OpKind::kBarrier;
      signature.tensors.clear();
      return signature;
    case 1:
      signature.root_rank = (signature.root_rank + 1) % size;
      return signature;
    case 2:
      signature.postscale += 1.0;
      return signature;
    case 3:
      signature.reduce_op = ReduceOp::kProduct;
      return signature;
    default:
      break;
  }
  if (signature.kind == OpKind::kBarrier) {
    signature.kind = OpKind::kBroadcast;
    signature.tensors.push_back({DType::kFloat32, 0, {3}});
  } else if (random.Percent(50)) {
    signature.tensors.front().dtype = DType::kUint8;
  } else {
    signature.tensors.back().shape.push_back(7);
  }
  return signature;
}

void DrawOptions(Random& random, Scenario& scenario) {
  plan::Options& options = scenario.options;
  options.fusion_threshold_bytes = random.Pick<std::size_t>({0, 100, 1000, 1U << 20, 1U << 20});
  options.intern_capacity = random.Pick<std::size_t>({0, 1, 2, 5, 20, 65536});
  options.stall_check = !random.Percent(10);
  options.stall_warning = random.Pick<Duration>({milliseconds(300), seconds(1), seconds(60)});
  options.stall_shutdown = random.Pick<Duration>({Duration{}, seconds(2), seconds(5)});
  scenario.think = random.Pick<Duration>({microseconds(1), microseconds(100), milliseconds(5)});
  scenario.latency = random.Pick<Duration>({microseconds(1), microseconds(50), milliseconds(1)});
  // Well below the time that a verdict waits for the last words of a rank.
  scenario.long_latency = random.Percent(30) ? milliseconds(40) : scenario.latency;
  scenario.batch_time =
      random.Pick<Duration>({microseconds(1), microseconds(200), milliseconds(3)});
  scenario.burst_percent = random.Pick<int>({0, 50, 95});
  scenario.pause_percent = random.Percent(20) ? 2 : 0;
  scenario.stale_frame_percent = random.Percent(20) ? 5 : 0;
}

/// Steps of operations: the names come back in each step, with the same signature mostly.
void DrawProgram(Random& random, Scenario& scenario) {
  const int name_count = random.Between(1, scenario.size > 32 ? 6 : 14);
  std::vector<wire::Signature> signatures;
  for (int i = 0; i < name_count; ++i) {
    scenario.names.push_back(Format("layer{}.weight", i));
    signatures.push_back(DrawSignature(random, scenario.names.back(), scenario.size));
  }
  const int steps = random.Between(1, scenario.size > 32 ? 4 : 8);
  scenario.programs.resize(static_cast<std::size_t>(scenario.size));
  for (int step = 0; step < steps; ++step) {
    Step plan;
    for (std::size_t name = 0; name < signatures.size(); ++name) {
      if (random.Percent(15)) continue;
      if (random.Percent(8)) {
        signatures[name] = DrawSignature(random, scenario.names[name], scenario.size);
      }
      plan.operations.push_back(scenario.operations.size());
      scenario.operations.push_back(
          DrawOperation(random, name, signatures[name], false, scenario.size));
    }
    for (int i = random.Percent(40) ? random.Between(1, 5) : 0; i > 0; --i) {
      const std::size_t name = scenario.names.size();
      scenario.names.push_back(Format("allreduce.noname.{}", name));
      plan.operations.push_back(scenario.operations.size());
      scenario.operations.push_back(
          DrawOperation(random, name, DrawSignature(random, scenario.names.back(), scenario.size),
                        true, scenario.size));
    }
    for (std::vector<Step>& program : scenario.programs) {
      Step own = plan;
      if (random.Percent(70)) random.Shuffle(own.operations);
      own.wait_at_end = random.Percent(50);
      program.push_back(std::move(own));
    }
  }
}

void DrawDeviations(Random& random, Scenario& scenario) {
  const int chance = random.Pick<int>({0, 0, 0, 2, 10});
  for (std::size_t i = 0; i < scenario.operations.size(); ++i) {
    if (!random.Percent(chance)) continue;
    for (int ranks = random.Percent(80) ? 1 : random.Between(1, scenario.size); ranks > 0;
         --ranks) {
      Deviation deviation;
      switch (random.Between(0, 3)) {
        case 0:
          deviation.skip = true;
          break;
        case 1:
          deviation.late = random.Upto(seconds(8));
          break;
        default:
          deviation.signature = Stray(random, scenario.operations[i].signature, scenario.size);
          break;
      }
      scenario.deviations[{random.Between(0, scenario.size - 1), i}] = std::move(deviation);
    }
  }
}

void DrawFaults(Random& random, Scenario& scenario) {
  if (!random.Percent(35)) return;
  // Roughly within the run of the program.
  const Duration horizon =
      scenario.think * static_cast<int>(scenario.operations.size()) + milliseconds(1);
  const int count = random.Percent(80) ? 1 : 2;
  for (int i = 0; i < count; ++i) {
    Fault fault;
    fault.kind = random.Pick<FaultKind>({FaultKind::kCrash, FaultKind::kCrash, FaultKind::kError,
                                         FaultKind::kLeave, FaultKind::kLeaveIdle});
    fault.rank = random.Percent(30) ? 0 : random.Between(0, scenario.size - 1);
    fault.at = TimePoint{} + random.Upto(horizon);
    scenario.faults.push_back(fault);
  }
}

}  // namespace

bool Scenario::IsCulprit(int rank) const {
  return std::any_of(faults.begin(), faults.end(),
                     [rank](const Fault& fault) { return fault.rank == rank; });
}

bool Scenario::HasFault(FaultKind kind) const {
  return std::any_of(faults.begin(), faults.end(),
                     [kind](const Fault& fault) { return fault.kind == kind; });
}

std::string Scenario::Describe() const {
  static constexpr const char* kKinds[] = {"crashes", "fails", "leaves", "leaves when idle"};
  std::string text = Format(
      "{} ranks, {} operations of {} names, threshold {}, ids {}, stalls {} ms/{} ms, latency {} "
      "us, {} deviations",
      size, operations.size(), names.size(), options.fusion_threshold_bytes,
      options.intern_capacity, options.stall_warning / milliseconds(1),
      options.stall_shutdown / milliseconds(1), latency / microseconds(1), deviations.size());
  for (const Fault& fault : faults) {
    text += Format(", rank {} {} at {} us", fault.rank, kKinds[static_cast<int>(fault.kind)],
                   (fault.at - TimePoint{}) / microseconds(1));
  }
  return text;
}

Scenario MakeScenario(std::uint64_t seed, int size) {
  Random random(seed);
  Scenario scenario;
  scenario.seed = seed;
  const int drawn = DrawSize(random);
  scenario.size = size > 0 ? size : drawn;
  DrawOptions(random, scenario);
  DrawProgram(random, scenario);
  DrawDeviations(random, scenario);
  DrawFaults(random, scenario);
  return scenario;
}

}  // namespace hvl::sim
