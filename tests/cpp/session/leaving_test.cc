// Ranks of several hosts that shut down after their last operation, each at its own time: the
// operation succeeds on every rank, and nobody who asks for no more gets an error, whoever leads a
// host or passes messages on.
//
// A world is drawn from a seed: hosts (up to seven), ranks on each (up to three), the radix of the
// tree of hosts, so that it is up to six levels deep, the data plane, the operations, and when each
// rank leaves. Some ranks go on after others have left; their next operation gets the error that
// names who has.
//
// By default some seeds from a random place: HVL_TEST_SEED says where to begin,
// HVL_TEST_LEAVING_SEEDS how many.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <random>

#include "csrc/base/str.h"
#include "csrc/session/data_plane.h"
#include "csrc/session/settings.h"
#include "tests/support/from_environment.h"
#include "tests/support/log_capture.h"
#include "tests/support/mesh_ranks.h"
#include "tests/support/operations.h"
#include "tests/support/sanitized.h"
#include "tests/support/worlds.h"

namespace hvl::test {
namespace {

constexpr std::uint64_t kSeeds = kSanitized ? 15 : 100;

using Random = std::mt19937_64;

int Between(Random& random, int first, int last) {
  return first + static_cast<int>(random() % static_cast<unsigned>(last - first + 1));
}

struct Plan {
  std::vector<int> ranks_per_host;
  int size = 0;
  int radix = 8;
  std::string data_plane;
  int operations = 1;
  std::size_t elements = 1;
  std::vector<int> pause_us;  // by rank, before it leaves or goes on
  std::vector<bool> goes_on;  // by rank: it asks for more, which nobody can have any more
  std::string text;
};

Plan Draw(std::uint64_t seed) {
  Random random(seed);
  Plan plan;
  const int hosts = Between(random, 2, 7);
  for (int host = 0; host < hosts; ++host) {
    plan.ranks_per_host.push_back(Between(random, 1, hosts > 4 ? 2 : 3));
    plan.size += plan.ranks_per_host.back();
  }
  plan.radix = std::array{1, 2, 2, 8}[random() % 4];
  plan.data_plane = random() % 4 == 0 ? "tcp" : "auto";
  plan.operations = Between(random, 1, 3);
  plan.elements = std::array<std::size_t, 4>{1, 100, 10'000, 100'000}[random() % 4];
  const int most_us = std::array{0, 300, 3000}[random() % 3];
  const int leaver = Between(random, 0, plan.size - 1);
  for (int rank = 0; rank < plan.size; ++rank) {
    plan.pause_us.push_back(Between(random, 0, most_us));
    plan.goes_on.push_back(rank != leaver && random() % 4 == 0);
  }
  plan.text = Format(
      "seed {}: {} hosts, {} ranks, radix {}, {}, {} operations of {} elements, "
      "pauses up to {} us, rank {} leaves",
      seed, hosts, plan.size, plan.radix, plan.data_plane, plan.operations, plan.elements, most_us,
      leaver);
  return plan;
}

// As CreateSession makes it, but for the tree of hosts.
Result<std::unique_ptr<engine::Engine>> StartEngine(std::unique_ptr<net::Mesh> mesh,
                                                    const std::string& data_plane,
                                                    const std::shared_ptr<LogSink>& sink) {
  HVL_ASSIGN_OR_RETURN(const config::Config config,
                       ConfigOf(mesh->rank(), mesh->size(), {{"HVL_CPU_OPERATIONS", data_plane}}));
  const Logger logger(sink, LogLevel::kWarning, Format("{}/{}", mesh->rank(), mesh->size()), true);
  HVL_ASSIGN_OR_RETURN(std::unique_ptr<collective::Backend> backend,
                       session::MakeDataPlane(config, *mesh, logger));
  auto planner = plan::Planner::Create(mesh->rank(), mesh->size(), mesh->generation(),
                                       session::PlannerOptions(config, backend->has_gates()));
  return engine::Engine::Start(session::EngineOptions(config), std::move(mesh), std::move(planner),
                               std::move(backend), logger, SteadyClock());
}

Complaint RunAll(engine::Engine& engine, const Plan& plan, int rank) {
  std::vector<std::vector<double>> values;
  for (int i = 0; i < plan.operations; ++i)
    values.emplace_back(plan.elements, static_cast<double>(rank + i));
  std::vector<Handle> handles;
  for (int i = 0; i < plan.operations; ++i) {
    auto handle =
        engine.Submit(Allreduce(Format("x{}", i), values[static_cast<std::size_t>(i)]), false);
    if (!handle.ok()) return handle.status().ToString();
    handles.push_back(*std::move(handle));
  }
  for (Handle& handle : handles) {
    if (const Status status = handle.WaitFor(kHangLimit); !status.ok()) return status.ToString();
  }
  for (int i = 0; i < plan.operations; ++i) {
    const double sum = plan.size * (plan.size - 1) / 2.0 + plan.size * i;
    const auto& result = values[static_cast<std::size_t>(i)];
    if (!std::ranges::all_of(result, [sum](double value) { return value == sum; }))
      return Format("a wrong sum in operation {}", i);
  }
  return {};
}

// What a rank asks for after another one has left.
Complaint AskForMore(engine::Engine& engine) {
  std::vector<double> values(10);
  auto handle = engine.Submit(Allreduce("more", values), false);
  const Status status = handle.ok() ? handle->WaitFor(kHangLimit) : handle.status();
  const bool told = status.code() == StatusCode::kAborted &&
                    status.message().find("has left (shutdown)") != std::string::npos;
  if (!told) return Format("more: {}", status.ToString());
  return engine.health().ok() ? "" : Format("health: {}", engine.health().ToString());
}

Complaint RunRank(std::unique_ptr<net::Mesh> mesh, const Plan& plan,
                  const std::shared_ptr<LogSink>& sink) {
  const int rank = mesh->rank();
  const auto index = static_cast<std::size_t>(rank);
  auto engine = StartEngine(std::move(mesh), plan.data_plane, sink);
  if (!engine.ok()) return engine.status().ToString();
  Complaint complaint = RunAll(**engine, plan, rank);
  if (!complaint.empty()) return complaint;
  std::this_thread::sleep_for(std::chrono::microseconds(plan.pause_us[index]));
  if (plan.goes_on[index]) {
    complaint = AskForMore(**engine);
  }
  const TimePoint begin = SteadyClock().Now();
  (*engine)->Stop();
  const Duration took = SteadyClock().Now() - begin;
  // Running out of patience takes 30 s here.
  if (complaint.empty() && took > std::chrono::seconds(20)) return "its shutdown takes too long";
  return complaint;
}

std::string RunPlan(const Plan& plan) {
  net::MeshOptions options;
  options.job_id = "leaving";
  options.radix = plan.radix;
  options.silence_limit = std::chrono::seconds(30);
  auto meshes = JoinHosts(plan.ranks_per_host, options);
  if (!meshes.ok()) return meshes.status().ToString();
  const LogCapture log;
  const auto complaints = RunRanks(plan.size, [&](int rank) {
    return RunRank(std::move((*meshes)[static_cast<std::size_t>(rank)]), plan, log.sink());
  });
  for (int rank = 0; rank < plan.size; ++rank) {
    const Complaint& complaint = complaints[static_cast<std::size_t>(rank)];
    if (!complaint.empty()) return Format("rank {}: {}", rank, complaint);
  }
  const std::vector<std::string> lines = log.lines();
  return lines.empty() ? "" : lines.front();
}

TEST_CASE("ranks of several hosts leave in any order after their last operation") {
  const std::uint64_t first = FromEnvironment("HVL_TEST_SEED", std::random_device()());
  const std::uint64_t count = FromEnvironment("HVL_TEST_LEAVING_SEEDS", kSeeds);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Plan plan = Draw(seed);
    INFO(plan.text);
    REQUIRE(RunPlan(plan) == "");
  }
}

}  // namespace
}  // namespace hvl::test
