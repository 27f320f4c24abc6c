// Frozen plans, through the public API on the shared-memory data plane: a program that repeats
// itself stops negotiating, and whatever it does differently then has the result that it always
// had.
#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "csrc/base/str.h"
#include "tests/support/operations.h"
#include "tests/support/temporary_file.h"
#include "tests/support/worlds.h"

namespace hvl::test {
namespace {

using namespace std::chrono_literals;

const Knobs kFreezes{{"HVL_FREEZE_AFTER", "3"}, {"HVL_CPU_OPERATIONS", "local"}};
constexpr int kTensors = 24;

/// One rank's training loop: steps in which it sums tensors, in an order of its own each time.
class Program {
 public:
  Program(Session& session, unsigned seed)
      : session_(session), random_(seed * 101 + static_cast<unsigned>(session.world().rank)) {
    for (int i = 0; i < kTensors; ++i) {
      lengths_.push_back(static_cast<std::size_t>(i == 4 ? 20000 : i % 5 == 4 ? 2000 : 1 + 13 * i));
    }
  }

  Session& session() { return session_; }
  int rank() const { return session_.world().rank; }
  /// Tensors are submitted in the same order on all ranks from now on.
  void KeepOrder() { ordered_ = true; }
  void Grow(int tensor) { lengths_[static_cast<std::size_t>(tensor)] += 7; }

  /// `between` runs when `pause_after` tensors have been submitted; tensor `left_out` is not there.
  Complaint Step(int pause_after = kTensors, const std::function<Complaint()>& between = nullptr,
                 int left_out = kTensors) {
    ++step_;
    std::vector<int> order(kTensors);
    std::iota(order.begin(), order.end(), 0);
    // Ranks that wait for different tensors before they submit others would wait for each other.
    if (!ordered_) std::shuffle(order.begin(), order.end(), random_);
    std::erase(order, left_out);
    values_.assign(kTensors, {});
    handles_.clear();
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (static_cast<int>(i) == pause_after && between) {
        if (Complaint complaint = between(); !complaint.empty()) return complaint;
      }
      if (Complaint complaint = Submit(order[i]); !complaint.empty()) return complaint;
    }
    if (pause_after >= static_cast<int>(order.size()) && between) {
      if (Complaint complaint = between(); !complaint.empty()) return complaint;
    }
    return Finish();
  }

  /// Waits for what this step has submitted so far.
  Complaint Finish() {
    for (auto& [tensor, handle] : handles_) {
      if (const Status status = handle.Wait(); !status.ok()) return status.ToString();
      const std::vector<double>& values = values_[static_cast<std::size_t>(tensor)];
      for (std::size_t i = 0; i < values.size(); ++i) {
        double expected = 0;
        for (int r = 0; r < session_.world().size; ++r) expected += Value(tensor, r, i);
        if (values[i] != expected) {
          return Format("step {}, tensor {}[{}]: {} instead of {}", step_, tensor, i, values[i],
                        expected);
        }
      }
    }
    handles_.clear();
    return {};
  }

  Complaint Steps(int count) {
    for (int i = 0; i < count; ++i) {
      if (Complaint complaint = Step(); !complaint.empty()) return complaint;
    }
    return {};
  }

  /// Another operation, waited for.
  Complaint Extra(const std::string& name, OpKind kind = OpKind::kAllreduce) {
    std::vector<double> values{1.0};
    Operation operation = Allreduce(name, values);
    operation.kind = kind;
    if (kind == OpKind::kBarrier) operation.tensors.clear();
    if (const Status status = session_.Run(operation); !status.ok()) return status.ToString();
    if (kind == OpKind::kAllreduce && values[0] != session_.world().size) return "extra: wrong sum";
    return {};
  }

 private:
  double Value(int tensor, int rank, std::size_t at) const {
    return (rank + 1) * (step_ % 7 + 1) + tensor + static_cast<double>(at % 11);
  }

  Complaint Submit(int tensor) {
    std::vector<double>& values = values_[static_cast<std::size_t>(tensor)];
    values.resize(lengths_[static_cast<std::size_t>(tensor)]);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = Value(tensor, rank(), i);
    auto handle = session_.Submit(Allreduce(Format("gradient.{}", tensor), values));
    if (!handle.ok()) return handle.status().ToString();
    handles_.emplace_back(tensor, *handle);
    return {};
  }

  Session& session_;
  std::mt19937 random_;
  std::vector<std::size_t> lengths_;
  std::vector<std::vector<double>> values_;
  std::vector<std::pair<int, Handle>> handles_;
  int step_ = 0;
  bool ordered_ = false;
};

/// Some steps more than it takes. The freeze is in the stream of decisions, so it comes on all
/// ranks before the same step.
Complaint Freeze(Program& program) {
  if (Complaint complaint = program.Steps(8); !complaint.empty()) return complaint;
  return program.session().counters().plan_freezes > 0 ? Complaint() : "the plan does not freeze";
}

TEST_CASE("a program that repeats itself sends no message any more") {
  const int size = GENERATE(2, 4);
  std::array<int, 4> silent_stretches{};  // by rank
  const auto body = [&silent_stretches](Session& session) -> Complaint {
    Program program(session, 1);
    const auto rank = static_cast<std::size_t>(program.rank());
    if (Complaint complaint = program.Steps(20); !complaint.empty()) return complaint;
    // On a machine that stands still now and then, a plan may thaw without need, and freezes again.
    for (int stretch = 0; stretch < 10; ++stretch) {
      const SessionCounters before = session.counters();
      if (Complaint complaint = program.Steps(100); !complaint.empty()) return complaint;
      const SessionCounters after = session.counters();
      const bool silent = after.control_frames_sent == before.control_frames_sent &&
                          after.control_frames_received == before.control_frames_received;
      if (silent && after.plan_freezes > after.plan_thaws) ++silent_stretches[rank];
    }
    return silent_stretches[rank] > 0 ? Complaint() : "frames were sent";
  };
  CHECK(FirstComplaint(RunWorld(size, kFreezes, body)).empty());
}

/// Without a frame, at least at some time: when the machine stands still, a plan may thaw.
Complaint SilentSteps(Program& program) {
  bool silent = false;
  for (int stretch = 0; stretch < 8; ++stretch) {
    const std::uint64_t frames = program.session().counters().control_frames_sent;
    if (Complaint complaint = program.Steps(20); !complaint.empty()) return complaint;
    silent = silent || program.session().counters().control_frames_sent == frames;
  }
  return silent ? Complaint() : "frames are sent";
}

/// What a program may do differently in a step of a frozen plan.
struct Deviation {
  const char* name;
  std::function<Complaint(Program&)> step;
};

std::vector<Deviation> Deviations() {
  return {
      {"an operation beside",
       [](Program& p) { return p.Step(0, [&] { return p.Extra("more"); }); }},
      {"an operation waited for in the middle",
       [](Program& p) { return p.Step(kTensors / 2, [&] { return p.Extra("more"); }); }},
      {"one waited for at other places",
       [](Program& p) {
         const int at = p.rank() == 0 ? 3 : kTensors - 3;
         return p.Step(at, [&] { return p.Extra("more"); });
       }},
      {"a barrier in the middle",
       [](Program& p) {
         return p.Step(kTensors / 3, [&] { return p.Extra("fence", OpKind::kBarrier); });
       }},
      {"an unnamed operation",
       [](Program& p) { return p.Step(kTensors, [&] { return p.Extra(""); }); }},
      {"a tensor left out", [](Program& p) { return p.Step(kTensors, nullptr, 5); }},
      {"tensors waited for before the others are submitted",
       [](Program& p) {
         p.KeepOrder();
         return p.Step(kTensors / 2, [&] { return p.Finish(); });
       }},
      {"a tensor that has become longer",
       [](Program& p) {
         p.Grow(3);
         return p.Step();
       }},
      {"a new process set",
       [](Program& p) {
         const auto add = [&]() -> Complaint {
           const auto id = p.session().AddProcessSet({0});
           if (!id.ok()) return id.status().ToString();
           const Status status = p.session().RemoveProcessSet(*id);
           return status.ok() ? Complaint() : status.ToString();
         };
         return p.Step(kTensors / 2, add);
       }},
      {"a slow rank",
       [](Program& p) {
         if (p.rank() == 1) std::this_thread::sleep_for(30ms);
         return p.Step();
       }},
  };
}

TEST_CASE("whatever a program does differently while its plan is frozen has its usual result") {
  const int size = GENERATE(2, 3);
  const auto which = GENERATE(range(0, 10));
  const Deviation deviation = Deviations()[static_cast<std::size_t>(which)];
  INFO(deviation.name << ", " << size << " ranks");
  const auto body = [&deviation](Session& session) -> Complaint {
    Program program(session, 7);
    if (Complaint complaint = Freeze(program); !complaint.empty()) return complaint;
    for (int round = 0; round < 3; ++round) {
      if (Complaint complaint = deviation.step(program); !complaint.empty()) return complaint;
      if (Complaint complaint = program.Steps(4); !complaint.empty()) return complaint;
    }
    // It freezes again, for as many steps as the program stays the same.
    if (Complaint complaint = program.Steps(150); !complaint.empty()) return complaint;
    return SilentSteps(program);
  };
  CHECK(FirstComplaint(RunWorld(size, kFreezes, body)) == "");
}

TEST_CASE("ranks that disagree while their plan is frozen are told so, and go on") {
  const auto body = [](Session& session) -> Complaint {
    Program program(session, 3);
    if (Complaint complaint = Freeze(program); !complaint.empty()) return complaint;
    std::vector<double> values(session.world().rank == 0 ? 5 : 6);
    const Status status = session.Run(Allreduce("gradient.0", values));
    if (status.code() != StatusCode::kMismatch) return status.ToString();
    if (status.message().find("gradient.0") == std::string::npos) return status.ToString();
    return program.Steps(60);
  };
  CHECK(FirstComplaint(RunWorld(2, kFreezes, body)) == "");
}

TEST_CASE("a wait with a limit ends while a peer is not at the gate of a frozen plan") {
  std::atomic<bool> has_ended{false};
  const auto body = [&has_ended](Session& session) -> Complaint {
    std::vector<double> values(3);
    for (int step = 0; step < 8; ++step) {
      if (const Status status = session.Run(Allreduce("small", values)); !status.ok()) {
        return status.ToString();
      }
    }
    if (session.counters().plan_freezes == 0) return "not frozen";
    if (session.world().rank == 1) {
      const TimePoint give_up = SteadyClock().Now() + kHangLimit;
      while (!has_ended && SteadyClock().Now() < give_up) std::this_thread::sleep_for(1ms);
      const Status status = session.Run(Allreduce("small", values));
      return has_ended && status.ok() ? Complaint() : "the limit was not kept";
    }
    auto handle = session.Submit(Allreduce("small", values));
    if (!handle.ok()) return handle.status().ToString();
    const Status limited = handle->WaitFor(20ms);
    has_ended = true;
    if (limited.code() != StatusCode::kTimeout) return limited.ToString();
    const Status status = handle->Wait();
    return status.ok() ? Complaint() : status.ToString();
  };
  CHECK(FirstComplaint(RunWorld(2, kFreezes, body)) == "");
}

TEST_CASE("a rank that leaves a frozen plan is an error for those that wait for it") {
  const auto body = [](Session& session) -> Complaint {
    Program program(session, 3);
    if (Complaint complaint = Freeze(program); !complaint.empty()) return complaint;
    if (session.world().rank == 1) {
      session.Shutdown();
      return {};
    }
    const Complaint complaint = program.Step();
    return complaint.find("rank 1") != std::string::npos ? Complaint() : "no error: " + complaint;
  };
  CHECK(FirstComplaint(RunWorld(2, kFreezes, body)) == "");
}

std::vector<std::string> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("the autotuner tries other buckets, tells what it found, and disturbs no result") {
  Knobs knobs = kFreezes;
  knobs["HVL_AUTOTUNE"] = "1";
  knobs["HVL_AUTOTUNE_STEPS_PER_SAMPLE"] = "3";
  knobs["HVL_AUTOTUNE_WARMUP_SAMPLES"] = "1";
  knobs["HVL_AUTOTUNE_MAX_SAMPLES"] = "12";
  const TemporaryFile log;
  knobs["HVL_AUTOTUNE_LOG"] = log.path();
  const auto body = [](Session& session) -> Complaint {
    Program program(session, 11);
    if (Complaint complaint = program.Steps(250); !complaint.empty()) return complaint;
    const SessionCounters counters = session.counters();
    if (counters.plan_thaws < 3) return Format("{} thaws", counters.plan_thaws);
    return SilentSteps(program);  // it has settled
  };
  CHECK(FirstComplaint(RunWorld(2, knobs, body)) == "");
  const std::vector<std::string> lines = LinesOf(log.path());
  REQUIRE(lines.size() > 12);
  CHECK(lines[0] == "seconds,bucket_bytes,edge_bucket_bytes,median_step_seconds,bytes_per_second");
  CHECK_THAT(lines[1], Catch::Contains(",8388608,1048576,"));
  CHECK_THAT(lines[3], Catch::Contains(",16777216,1048576,"));
}

TEST_CASE("where no plan can freeze, the autotuner's log says so") {
  Knobs knobs = kFreezes;
  knobs["HVL_AUTOTUNE"] = "1";
  const auto logged = [&knobs](const char* knob, const char* value) {
    const TemporaryFile log;
    Knobs with = knobs;
    with["HVL_AUTOTUNE_LOG"] = log.path();
    with[knob] = value;
    const auto body = [](Session& session) { return Program(session, 5).Steps(30); };
    CHECK(FirstComplaint(RunWorld(2, with, body)) == "");
    return LinesOf(log.path());
  };
  const std::vector<std::string> over_tcp = logged("HVL_CPU_OPERATIONS", "tcp");
  REQUIRE(over_tcp.size() == 2);
  CHECK_THAT(over_tcp[1], Catch::StartsWith("# HVL_AUTOTUNE has no effect") &&
                              Catch::Contains("the data plane is 'tcp'"));
  const std::vector<std::string> unfrozen = logged("HVL_FREEZE_AFTER", "0");
  REQUIRE(unfrozen.size() == 2);
  CHECK(unfrozen[1] == "# HVL_AUTOTUNE has no effect: HVL_FREEZE_AFTER is 0");
}

TEST_CASE("random programs have the same results whether their plans freeze or not") {
  const auto seed = GENERATE(range(1U, 13U));
  INFO("seed " << seed);
  const auto body = [seed](Session& session) -> Complaint {
    Program program(session, seed);
    std::mt19937 common(seed);  // the same on all ranks
    const std::vector<Deviation> deviations = Deviations();
    for (int step = 0; step < 150; ++step) {
      const auto& deviation = deviations[common() % deviations.size()];
      const bool deviates = common() % 12 == 0;
      const Complaint complaint = deviates ? deviation.step(program) : program.Step();
      if (!complaint.empty()) return Format("step {} ({}): {}", step, deviation.name, complaint);
    }
    return {};
  };
  Knobs knobs = kFreezes;
  knobs["HVL_FREEZE_AFTER"] = seed % 2 == 0 ? "2" : "1";
  CHECK(FirstComplaint(RunWorld(seed % 3 == 0 ? 3 : 2, knobs, body)) == "");
}

}  // namespace
}  // namespace hvl::test
