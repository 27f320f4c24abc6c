#include "tests/cpp/sim/scenario.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "csrc/base/str.h"
#include "csrc/plan/batcher.h"
#include "tests/cpp/sim/random.h"

namespace hvl::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

int DrawSize(Random& random) {
  if (random.Below(1000) == 0) return random.Between(65, 4096);
  const int dice = random.Between(0, 99);
  if (dice < 60) return random.Between(2, 4);
  if (dice < 85) return random.Between(5, 12);
  if (dice < 97) return random.Between(13, 33);
  return random.Between(34, 64);
}

wire::Signature DrawSignature(Random& random, const std::string& name, ProcessSetId set,
                              const std::vector<int>& members, bool steady) {
  wire::Signature signature;
  signature.name = name;
  signature.kind = static_cast<OpKind>(random.Percent(60) ? 0 : random.Between(1, 5));
  if (steady && !plan::IsPlannable(signature.kind)) signature.kind = OpKind::kAllreduce;
  signature.process_set = set;
  if (signature.kind == OpKind::kBroadcast) signature.root_rank = random.Pick(members);
  if (signature.kind == OpKind::kAllreduce || signature.kind == OpKind::kReducescatter) {
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

/// Adds it to the scenario; returns its index.
std::size_t AddOperation(Random& random, Scenario& scenario, std::size_t name_index,
                         wire::Signature signature, bool transient) {
  const std::size_t index = scenario.operations.size();
  Operation operation{name_index, std::move(signature), transient, {}, {}};
  if (transient && random.Percent(90)) operation.site = Format("train.py:{}", index);
  const std::size_t members = scenario.members[scenario.name_sets[name_index]].size();
  const OpKind kind = operation.signature.kind;
  std::size_t dims = operation.signature.tensors.size();
  if (kind == OpKind::kAlltoall) dims *= members;
  if (kind == OpKind::kAllgather || kind == OpKind::kAlltoall) {
    operation.first_dims.resize(static_cast<std::size_t>(scenario.size));
    for (auto& own : operation.first_dims) {
      for (std::size_t i = 0; i < dims; ++i) own.push_back(random.Between(0, 6));
    }
  }
  scenario.operations.push_back(std::move(operation));
  return index;
}

std::size_t AddName(Scenario& scenario, ProcessSetId set, std::string name) {
  scenario.names.push_back(std::move(name));
  scenario.name_sets.push_back(set);
  return scenario.names.size() - 1;
}

/// A change in one property.
wire::Signature Stray(Random& random, wire::Signature signature, int size) {
  if (signature.kind == OpKind::kProcessSet) {
    if (!signature.ranks.empty()) signature.ranks.pop_back();
    if (signature.ranks.empty()) signature.ranks = {0};
    return signature;
  }
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
  options.unnamed_sites =
      random.Pick<plan::UnnamedSites>({plan::UnnamedSites::kError, plan::UnnamedSites::kError,
                                       plan::UnnamedSites::kWarn, plan::UnnamedSites::kIgnore});
  options.freeze_after = random.Pick<int>({0, 1, 2, 2, 3, 5});
  options.bucket_bytes = random.Pick<std::size_t>({0, 100, 1000, 1U << 20, 1U << 20});
  options.edge_bucket_bytes = random.Pick<std::size_t>({0, 64, 500});
  options.tune = random.Percent(20);
  options.tuner = {.warm_up_samples = 0, .steps_per_sample = random.Between(1, 3)};
  options.patience = random.Pick<Duration>({Duration{}, microseconds(200), milliseconds(5)});
}

/// Draws the program that all ranks run: steps of operations. The names come back in each step,
/// with the same signature mostly. Process sets come and go; now and then all ranks join, each of
/// them after as many steps as it has data for.
class ProgramWriter {
 public:
  ProgramWriter(Random& random, Scenario& scenario) : random_(random), scenario_(scenario) {}

  void Write() {
    std::vector<int> world;
    for (int rank = 0; rank < scenario_.size; ++rank) world.push_back(rank);
    scenario_.members.push_back(std::move(world));
    scenario_.programs.resize(static_cast<std::size_t>(scenario_.size));
    const bool huge = scenario_.size > 64;
    steady_ = huge || random_.Percent(50);
    AddNames(kWorldSet, random_.Between(1, huge ? 3 : scenario_.size > 32 ? 6 : 14));
    if (steady_) return WriteSteady();
    const int steps = random_.Between(1, scenario_.size > 32 ? 4 : 8);
    const bool sets = random_.Percent(50);
    const bool joins = random_.Percent(30);
    // A join that times out leaves ranks out of step, as any program that goes on after it.
    if (joins) scenario_.options.stall_shutdown = {};
    for (int step = 0; step < steps; ++step) {
      if (joins && random_.Percent(40)) {
        WriteJoin();
        continue;
      }
      Step plan;
      if (sets && random_.Percent(40)) plan.operations.push_back(WriteNewSet());
      for (Set& set : live_) WriteOperations(set, plan, 15);
      if (live_.size() > 1 && random_.Percent(25)) plan.operations.push_back(WriteRemoval());
      Append(plan);
    }
  }

 private:
  struct Set {
    ProcessSetId id = kWorldSet;
    std::vector<std::size_t> names;
    std::vector<wire::Signature> signatures;
  };

  /// Step after step the same, so that a plan freezes; now and then something else.
  void WriteSteady() {
    const bool huge = scenario_.size > 64;
    const int chance = random_.Pick<int>({0, 5, 20});
    if (random_.Percent(80)) scenario_.options.intern_capacity = 65536;
    const bool joins = !huge && random_.Percent(20);
    if (joins) scenario_.options.stall_shutdown = {};
    const bool in_order = random_.Percent(50);
    const bool one_by_one = in_order && random_.Percent(60);
    for (int step = random_.Between(6, huge                  ? 10
                                       : scenario_.size > 32 ? 15
                                                             : 40);
         step > 0; --step) {
      Step plan;
      plan.wait_for_each = one_by_one;
      const bool strays = random_.Percent(chance);
      if (strays && joins && random_.Percent(30)) {
        WriteJoin();
        continue;
      }
      if (strays && random_.Percent(30)) plan.operations.push_back(WriteNewSet());
      if (strays && live_.size() > 1) plan.operations.push_back(WriteRemoval());
      // Skips and changes some, and adds unnamed ones.
      if (strays && random_.Percent(70)) {
        for (Set& set : live_) WriteOperations(set, plan, random_.Percent(50) ? 30 : 0);
      } else {
        WriteAgain(live_.front(), plan);
      }
      Append(plan, {}, !in_order);
    }
  }

  void WriteAgain(Set& set, Step& plan) {
    for (std::size_t i = 0; i < set.names.size(); ++i) {
      plan.operations.push_back(
          AddOperation(random_, scenario_, set.names[i], set.signatures[i], false));
    }
  }

  const std::vector<int>& Members(ProcessSetId set) const { return scenario_.members[set]; }

  void AddNames(ProcessSetId set, int count) {
    live_.emplace_back();
    live_.back().id = set;
    for (int i = 0; i < count; ++i) {
      std::string name = Format("layer{}.weight", i);  // the same ones in all sets
      live_.back().signatures.push_back(DrawSignature(random_, name, set, Members(set), steady_));
      live_.back().names.push_back(AddName(scenario_, set, std::move(name)));
    }
  }

  void WriteOperations(Set& set, Step& plan, int skip_percent) {
    for (std::size_t i = 0; i < set.names.size(); ++i) {
      if (random_.Percent(skip_percent)) continue;
      const std::string& name = scenario_.names[set.names[i]];
      if (random_.Percent(8)) {
        set.signatures[i] = DrawSignature(random_, name, set.id, Members(set.id), steady_);
      }
      plan.operations.push_back(
          AddOperation(random_, scenario_, set.names[i], set.signatures[i], false));
    }
    for (int i = random_.Percent(40) ? random_.Between(1, 5) : 0; i > 0; --i) {
      const std::size_t name =
          AddName(scenario_, set.id, Format("allreduce.noname.{}", scenario_.names.size()));
      plan.operations.push_back(AddOperation(random_, scenario_, name,
                                             DrawSignature(random_, scenario_.names[name], set.id,
                                                           Members(set.id), scenario_.size > 64),
                                             true));
    }
  }

  std::size_t WriteRegistration(ProcessSetId id, const char* verb, std::vector<int> ranks) {
    const std::size_t name = AddName(scenario_, kWorldSet, Format("process_set.{}.{}", verb, id));
    wire::Signature signature;
    signature.kind = OpKind::kProcessSet;
    signature.name = scenario_.names[name];
    signature.process_set = id;
    signature.ranks.assign(ranks.begin(), ranks.end());
    return AddOperation(random_, scenario_, name, std::move(signature), true);
  }

  std::size_t WriteNewSet() {
    const auto id = static_cast<ProcessSetId>(scenario_.members.size());
    std::vector<int> ranks = Members(kWorldSet);
    random_.Shuffle(ranks);
    ranks.resize(static_cast<std::size_t>(random_.Between(1, scenario_.size)));
    std::sort(ranks.begin(), ranks.end());
    scenario_.members.push_back(ranks);
    AddNames(id, random_.Between(1, 4));
    return WriteRegistration(id, "add", ranks);
  }

  std::size_t WriteRemoval() {
    const auto which = static_cast<std::ptrdiff_t>(1 + random_.Below(live_.size() - 1));
    const ProcessSetId id = (live_.begin() + which)->id;
    live_.erase(live_.begin() + which);
    return WriteRegistration(id, "remove", {});
  }

  /// Steps that only some ranks have data for, then a join.
  void WriteJoin() {
    const int most = random_.Between(0, 3);
    std::vector<int> own(static_cast<std::size_t>(scenario_.size));
    for (int& steps : own) steps = random_.Between(0, most);
    for (int step = 0; step < most; ++step) {
      Step plan;
      WriteOperations(live_.front(), plan, random_.Percent(70) ? 50 : 15);
      if (random_.Percent(80)) {
        std::erase_if(plan.operations, [this](std::size_t index) {
          return scenario_.operations[index].signature.kind != OpKind::kAllreduce;
        });
      }
      Append(plan, [&](int rank) { return step < own[static_cast<std::size_t>(rank)]; });
    }
    const std::size_t name =
        AddName(scenario_, kWorldSet, Format("join.noname.{}", scenario_.names.size()));
    wire::Signature signature;
    signature.kind = OpKind::kJoin;
    signature.name = scenario_.names[name];
    Step plan;
    plan.operations = {AddOperation(random_, scenario_, name, std::move(signature), true)};
    Append(plan);
    for (std::vector<Step>& program : scenario_.programs) program.back().wait_at_end = true;
  }

  /// Each rank in its own order, without what it has no part in.
  void Append(const Step& plan, const std::function<bool(int rank)>& takes_part = {},
              bool shuffle = true) {
    for (int rank = 0; rank < scenario_.size; ++rank) {
      if (takes_part && !takes_part(rank)) continue;
      Step own = plan;
      std::erase_if(own.operations, [&](std::size_t index) {
        const std::size_t name = scenario_.operations[index].name_index;
        return !scenario_.IsMember(scenario_.name_sets[name], rank);
      });
      if (shuffle && random_.Percent(70)) random_.Shuffle(own.operations);
      own.wait_at_end = random_.Percent(50);
      scenario_.programs[static_cast<std::size_t>(rank)].push_back(std::move(own));
    }
  }

  Random& random_;
  Scenario& scenario_;
  std::vector<Set> live_;  // the first one is the world
  bool steady_ = false;
};

void DrawDeviations(Random& random, Scenario& scenario) {
  const int chance = random.Pick<int>({0, 0, 0, 2, 10});
  for (std::size_t i = 0; i < scenario.operations.size(); ++i) {
    if (!random.Percent(chance)) continue;
    for (int ranks = random.Percent(80) ? 1 : random.Between(1, scenario.size); ranks > 0;
         --ranks) {
      Deviation deviation;
      const Operation& operation = scenario.operations[i];
      int dice = random.Between(0, 4);
      if (operation.signature.kind == OpKind::kJoin) dice = 1;  // else ranks are out of step
      if (!operation.site.empty() && random.Percent(50)) dice = 2;
      switch (dice) {
        case 0:
          deviation.skip = true;
          break;
        case 1:
          deviation.late = random.Upto(seconds(8));
          break;
        case 2:
          deviation.elsewhere = true;
          break;
        default:
          deviation.signature = Stray(random, operation.signature, scenario.size);
          break;
      }
      int rank = random.Between(0, scenario.size - 1);
      // Never all of them: the members of a set are those of the scenario.
      if (operation.signature.kind == OpKind::kProcessSet) rank = std::max(rank, 1);
      scenario.deviations[{rank, i}] = std::move(deviation);
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

bool Scenario::IsMember(ProcessSetId set, int rank) const {
  return set < members.size() && std::binary_search(members[set].begin(), members[set].end(), rank);
}

bool Scenario::ComesOver(int leader, int other, int rank) const {
  if (ranks_per_host == 0 || leader == other || leader == rank) return leader == other;
  const int from = other / ranks_per_host, to = rank / ranks_per_host;
  const int host = leader / ranks_per_host;
  return from != to && (host == 0 || host == from || host == to);
}

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
      "{} ranks, {} process sets, {} operations of {} names, threshold {}, ids {}, stalls {} ms/{} "
      "ms, latency {} us, {} deviations, plans after {} instances, buckets {}",
      size, members.size() - 1, operations.size(), names.size(), options.fusion_threshold_bytes,
      options.intern_capacity, options.stall_warning / milliseconds(1),
      options.stall_shutdown / milliseconds(1), latency / microseconds(1), deviations.size(),
      options.freeze_after, options.bucket_bytes);
  if (ranks_per_host > 0) text += Format(", {} ranks per host", ranks_per_host);
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
  ProgramWriter(random, scenario).Write();
  DrawDeviations(random, scenario);
  // What costs the square of the ranks: goodbyes, and pauses that put off all that arrives.
  scenario.stays = scenario.size > 64;
  if (scenario.stays) scenario.pause_percent = 0;
  if (!scenario.stays) DrawFaults(random, scenario);
  if (!scenario.stays && random.Percent(40)) {
    scenario.ranks_per_host = random.Between(1, scenario.size - 1);
  }
  return scenario;
}

}  // namespace hvl::sim
