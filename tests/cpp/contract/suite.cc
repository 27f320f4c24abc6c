// The contract of collective::Backend (csrc/collective/backend.h), run on every implementation:
// results are the oracle's to the bit, nothing else is written, and an abort ends every wait.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <future>
#include <numeric>
#include <thread>

#include "csrc/base/str.h"
#include "csrc/collective/adasum.h"
#include "csrc/collective/part.h"
#include "tests/cpp/contract/scenario.h"
#include "tests/cpp/contract/world.h"
#include "tests/support/ranks.h"
#include "tests/support/reference_backend.h"
#include "tests/support/reference_reduce.h"
#include "tests/support/sanitized.h"

namespace hvl::collective::contract {
namespace {

using test::kHangLimit;
using test::kSanitized;
using test::Rounds;
using test::RunRanks;
using Scenarios = std::vector<std::unique_ptr<Scenario>>;

World MakeWorldOk(int ranks, const std::vector<int>& group_ends = {}) {
  Result<World> world = MakeWorld(ranks, group_ends);
  INFO(world.status().ToString());
  REQUIRE(world.ok());
  return std::move(world).value();
}

// Aborts a world whose operation takes longer than any honest one could, so that a hang is a
// failure that says where.
class Watchdog {
 public:
  explicit Watchdog(World& world)
      : watcher_([this, &world] {
          if (done_.get_future().wait_for(kHangLimit) == std::future_status::ready) return;
          const Status hang(StatusCode::kTimeout, "the test gave up waiting");
          for (const auto& backend : world) backend->Abort(hang);
        }) {}
  ~Watchdog() { done_.set_value(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::promise<void> done_;
  std::jthread watcher_;
};

// Runs the scenarios in order on all ranks, then compares all memory.
void RunAndCheck(World& world, const Scenarios& scenarios) {
  const Watchdog watchdog(world);
  const auto statuses = RunRanks(static_cast<int>(world.size()), [&](int rank) {
    for (const std::unique_ptr<Scenario>& scenario : scenarios) {
      const Status status = scenario->Run(*world[static_cast<std::size_t>(rank)], rank);
      if (!status.ok()) {
        return Status(status.code(), Format("{}: {}", scenario->description(), status.message()));
      }
    }
    return Status::Ok();
  });
  for (const Status& status : statuses) {
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
  for (const std::unique_ptr<Scenario>& scenario : scenarios) {
    INFO(scenario->description());
    CHECK(scenario->AsExpected());
  }
}

void RunAndCheck(World& world, std::unique_ptr<Scenario> scenario) {
  Scenarios scenarios;
  scenarios.push_back(std::move(scenario));
  RunAndCheck(world, scenarios);
}

constexpr std::array<DType, 10> kDTypes = {
#define HVL_X(enumerator, value, name, bytes) DType::enumerator,
    HVL_DTYPES(HVL_X)
#undef HVL_X
};
constexpr std::array<ReduceOp, 5> kOps = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                                          ReduceOp::kMax, ReduceOp::kProduct};

// Counts of elements that no rank count divides; the first takes every data plane more than a step.
constexpr int kMany = kSanitized ? 60'013 : 300'007;
constexpr int kOdd = kSanitized ? 2003 : 10'007;

TEST_CASE("allreduce gives the oracle's bits for every type, operation, size and placement") {
  const int ranks = GENERATE(1, 2, 3, 4, 8);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << ranks << " ranks");
  World world = MakeWorldOk(ranks);
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      const tensor::ReduceSpec spec{.dtype = dtype, .op = op, .rank_count = ranks};
      if (!tensor::CheckElementwise(spec).ok()) continue;
      Scenarios scenarios;
      for (const std::int64_t count : {0, 1, 13, 4096, kOdd}) {
        const auto placement = static_cast<Placement>(random() % 3);
        scenarios.push_back(MakeAllreduce(world, spec, {count}, placement, random));
      }
      RunAndCheck(world, scenarios);
    }
  }
}

TEST_CASE("allreduce of megabytes that no rank count divides, in each placement") {
  const int ranks = GENERATE(1, 2, 3, 8);
  const auto placement =
      GENERATE(Placement::kOwn, Placement::kShared, Placement::kMixed, Placement::kOutput);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << ranks << " ranks");
  World world = MakeWorldOk(ranks);
  const tensor::ReduceSpec average{.op = ReduceOp::kAverage, .rank_count = ranks};
  RunAndCheck(world, MakeAllreduce(world, average, {kMany}, placement, random));
  const tensor::ReduceSpec half{.dtype = DType::kFloat16, .prescale = 0.125, .rank_count = ranks};
  RunAndCheck(world,
              MakeAllreduce(world, half, {7, 0, kMany / 3, 1, kMany / 6}, placement, random));
}

TEST_CASE("a scatter list of thousands of small pieces is one long vector") {
  const int ranks = GENERATE(1, 2, 3);
  const auto placement =
      GENERATE(Placement::kOwn, Placement::kShared, Placement::kMixed, Placement::kOutput);
  const std::size_t pieces = GENERATE(100, 5000);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << ranks << " ranks");
  World world = MakeWorldOk(ranks);
  std::vector<std::int64_t> counts(pieces);
  for (std::int64_t& count : counts) count = test::RandomBetween(0, 40, random);
  RunAndCheck(world, MakeAllreduce(world, {.rank_count = ranks}, counts, placement, random));
  std::vector<std::size_t> bytes(pieces);
  for (std::size_t& count : bytes) count = random() % 50;
  RunAndCheck(world, MakeBroadcast(world, bytes, ranks - 1, placement, random));
}

TEST_CASE("broadcast reaches every rank from every root") {
  const int ranks = GENERATE(1, 2, 3, 4, 8);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << ranks << " ranks");
  World world = MakeWorldOk(ranks);
  for (int root = 0; root < ranks; ++root) {
    Scenarios scenarios;
    for (const auto placement : {Placement::kOwn, Placement::kShared, Placement::kMixed}) {
      scenarios.push_back(MakeBroadcast(world, {0}, root, placement, random));
      scenarios.push_back(MakeBroadcast(world, {1}, root, placement, random));
      scenarios.push_back(MakeBroadcast(world, {31, 0, 4097}, root, placement, random));
      scenarios.push_back(MakeBroadcast(world, {kMany, 5}, root, placement, random));
    }
    RunAndCheck(world, scenarios);
  }
}

TEST_CASE("allgather joins contributions of any size in rank order, nothing included") {
  const int ranks = GENERATE(1, 2, 3, 4, 8);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << ranks << " ranks");
  World world = MakeWorldOk(ranks);
  const auto all = [ranks](std::size_t bytes) {
    return std::vector<std::size_t>(static_cast<std::size_t>(ranks), bytes);
  };
  std::vector<std::size_t> uneven = all(0);
  for (std::size_t rank = 1; rank < uneven.size(); ++rank) uneven[rank] = rank * rank * 10007;
  std::vector<std::size_t> only_last = all(0);
  only_last.back() = 123457;
  for (const auto placement : {Placement::kOwn, Placement::kShared, Placement::kMixed}) {
    Scenarios scenarios;
    for (const auto& pieces : std::vector<std::vector<std::vector<std::size_t>>>{
             {all(0)}, {all(1)}, {all(200), all(3)}, {uneven}, {only_last, all(7), uneven}}) {
      scenarios.push_back(MakeAllgather(world, pieces, placement, random));
    }
    RunAndCheck(world, scenarios);
  }
}

TEST_CASE("reducescatter gives each rank its part of the oracle's allreduce") {
  const int ranks = GENERATE(1, 2, 3, 5, 8);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << ranks << " ranks");
  World world = MakeWorldOk(ranks);
  const auto all = [ranks](std::int64_t elements) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), elements);
  };
  std::vector<std::int64_t> uneven = all(0);
  for (std::size_t rank = 1; rank < uneven.size(); ++rank) {
    uneven[rank] = static_cast<std::int64_t>(rank * rank * 1003);
  }
  std::vector<std::int64_t> only_last = all(0);
  only_last.back() = 30011;
  const std::vector<std::vector<std::int64_t>> fragments(300, all(17));
  for (const auto placement : {Placement::kOwn, Placement::kShared, Placement::kMixed}) {
    Scenarios scenarios;
    for (const auto& parts :
         std::vector<std::vector<std::vector<std::int64_t>>>{{all(0)},
                                                             {all(1)},
                                                             {all(13), all(0), all(3)},
                                                             {all(20011)},
                                                             {uneven},
                                                             {only_last},
                                                             {only_last, all(7), uneven},
                                                             fragments}) {
      const tensor::ReduceSpec spec = test::RandomSpec(ranks, random);
      scenarios.push_back(MakeReducescatter(world, spec, parts, placement, random));
    }
    RunAndCheck(world, scenarios);
  }
}

TEST_CASE("alltoall brings every part to its place, nothing and lopsided ones included") {
  const int ranks = GENERATE(1, 2, 3, 5, 8);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << ranks << " ranks");
  World world = MakeWorldOk(ranks);
  const auto count = static_cast<std::size_t>(ranks);
  const auto matrix = [count](const std::function<std::size_t(std::size_t, std::size_t)>& bytes) {
    std::vector<std::size_t> all;
    for (std::size_t from = 0; from < count; ++from) {
      for (std::size_t to = 0; to < count; ++to) all.push_back(bytes(from, to));
    }
    return all;
  };
  const auto nothing = matrix([](auto, auto) { return 0; });
  const auto one = matrix([](auto, auto) { return 1; });
  const auto many = matrix([](auto, auto) { return 50021; });
  const auto uneven = matrix([](auto from, auto to) { return from * 1009 + to * 10007; });
  const auto scatter = matrix([](auto from, auto) { return from == 0 ? 70001 : 0; });
  const auto gather = matrix([](auto, auto to) { return to == 0 ? 70001 : 0; });
  const auto ring =
      matrix([count](auto from, auto to) { return to == (from + 1) % count ? 100003 : 0; });
  const auto kept = matrix([](auto from, auto to) { return from == to ? 20011 : 0; });
  const std::vector<std::vector<std::size_t>> fragments(300, matrix([](auto, auto) { return 9; }));
  for (const auto placement : {Placement::kOwn, Placement::kShared, Placement::kMixed}) {
    Scenarios scenarios;
    for (const auto& pieces :
         std::vector<std::vector<std::vector<std::size_t>>>{{nothing},
                                                            {one},
                                                            {many},
                                                            {uneven},
                                                            {scatter},
                                                            {gather},
                                                            {ring},
                                                            {kept},
                                                            {one, nothing, uneven, kept},
                                                            fragments}) {
      scenarios.push_back(MakeAlltoall(world, pieces, placement, random));
    }
    RunAndCheck(world, scenarios);
  }
}

// Adasum of a tensor that is all in one exchange and of one that is not.
std::vector<std::vector<float>> RunAdasum(World& world) {
  const int ranks = static_cast<int>(world.size());
  return RunRanks(ranks, [&](int rank) {
    std::mt19937_64 random(static_cast<std::uint64_t>(rank));
    std::normal_distribution<float> normal;
    std::vector<float> values(20011 + 7);
    for (float& value : values) value = normal(random);
    const std::array<ReducePiece, 2> pieces = {
        ReducePiece{values.data(), values.data(), 7},
        ReducePiece{values.data() + 7, values.data() + 7, 20011}};
    const Status status = AdasumAllreduce(*world[static_cast<std::size_t>(rank)], rank, ranks,
                                          pieces, DType::kFloat32, 1.0, 1.0);
    return status.ok() ? values : std::vector<float>();
  });
}

TEST_CASE("Adasum gives the same bits on every rank and backend") {
  const int ranks = GENERATE(1, 2, 3, 5);
  INFO(ranks << " ranks");
  World world = MakeWorldOk(ranks);
  World reference{test::MakeReferenceWorld(ranks, world.group_ends), world.group_ends};
  const Watchdog watchdog(world);
  const auto expected = RunAdasum(reference);
  REQUIRE(!expected[0].empty());
  for (const std::vector<float>& result : RunAdasum(world)) CHECK((result == expected[0]));
}

TEST_CASE("no rank leaves a barrier before the last has entered it") {
  const int ranks = GENERATE(1, 2, 3, 8);
  World world = MakeWorldOk(ranks);
  const Watchdog watchdog(world);
  constexpr int kRounds = 300;
  std::array<std::atomic<int>, kRounds> entered{};
  const auto early = RunRanks(ranks, [&](int rank) {
    int left_early = 0;
    for (std::atomic<int>& round : entered) {
      ++round;
      if (!world[static_cast<std::size_t>(rank)]->Barrier().ok()) return -1;
      if (round.load() != ranks) ++left_early;
    }
    return left_early;
  });
  for (const int left_early : early) CHECK(left_early == 0);
}

TEST_CASE("a thousand mixed operations give the oracle's bits") {
  const auto [ranks, batches] = GENERATE(table<int, int>({{2, 25}, {3, 15}, {8, 10}}));
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << ranks << " ranks");
  World world = MakeWorldOk(ranks);
  for (int batch = 0; batch < Rounds(batches); ++batch) {
    Scenarios scenarios;
    for (int index = 0; index < 20; ++index) scenarios.push_back(MakeRandom(world, random));
    INFO("batch " << batch);
    RunAndCheck(world, scenarios);
  }
}

TEST_CASE("an undefined reduction is refused on every rank") {
  World world = MakeWorldOk(2);
  const Watchdog watchdog(world);
  const auto statuses = RunRanks(2, [&](int rank) {
    bool value = true;
    const ReducePiece piece{&value, &value, 1};
    return world[static_cast<std::size_t>(rank)]->Allreduce(
        {&piece, 1}, {.dtype = DType::kBool, .op = ReduceOp::kSum, .rank_count = 2});
  });
  for (const Status& status : statuses) CHECK(status.code() == StatusCode::kInvalidArgument);
}

// The backends of a part of a world, by place in the part.
World SplitOk(World& world, const std::vector<int>& ranks) {
  World part;
  part.group_ends = PartGroupEnds(ranks, world.group_ends);
  for (const int rank : ranks) {
    Result<std::unique_ptr<Backend>> backend = world[static_cast<std::size_t>(rank)]->Split(ranks);
    INFO(backend.status().ToString());
    REQUIRE(backend.ok());
    part.push_back(std::move(backend).value());
  }
  return part;
}

// Ranks of a part in no order but ascending, at least one.
std::vector<int> RandomRanks(int ranks, std::mt19937_64& random) {
  std::vector<int> chosen;
  while (chosen.empty()) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (random() % 2 == 0) chosen.push_back(rank);
    }
  }
  return chosen;
}

// A group of ranks and its backends; the world itself is one.
struct Group {
  std::vector<int> ranks;
  World backends;
};

// Runs steps, each an operation of one group, in this order on every member, then compares memory.
void RunSteps(World& world, std::vector<Group>& groups,
              const std::vector<std::pair<std::size_t, std::unique_ptr<Scenario>>>& steps) {
  const Watchdog watchdog(world);
  const auto statuses = RunRanks(static_cast<int>(world.size()), [&](int rank) {
    for (const auto& [index, scenario] : steps) {
      Group& group = groups[index];
      const auto found = std::ranges::find(group.ranks, rank);
      if (found == group.ranks.end()) continue;
      const auto place = found - group.ranks.begin();
      const Status status =
          scenario->Run(*group.backends[static_cast<std::size_t>(place)], static_cast<int>(place));
      if (!status.ok()) {
        return Status(status.code(), Format("{}: {}", scenario->description(), status.message()));
      }
    }
    return Status::Ok();
  });
  for (const Status& status : statuses) {
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
  for (const auto& [index, scenario] : steps) {
    INFO("group " << index << " of " << groups[index].ranks.size()
                  << " ranks: " << scenario->description());
    CHECK(scenario->AsExpected());
  }
}

// Runs operations of the world, mixed with some of overlapping parts of it, and compares memory.
void CheckParts(World& world, std::mt19937_64& random, int rounds) {
  const int ranks = static_cast<int>(world.size());
  for (int round = 0; round < rounds; ++round) {
    std::vector<Group> groups;
    std::vector<int> all(world.size());
    std::iota(all.begin(), all.end(), 0);
    groups.push_back({.ranks = all, .backends = SplitOk(world, all)});
    while (groups.size() < 6) {
      const std::vector<int> chosen = RandomRanks(ranks, random);
      groups.push_back({.ranks = chosen, .backends = SplitOk(world, chosen)});
    }
    // A part of a part: every second of its ranks.
    std::vector<int> places;
    std::vector<int> nested;
    for (std::size_t place = 0; place < groups[1].ranks.size(); place += 2) {
      places.push_back(static_cast<int>(place));
      nested.push_back(groups[1].ranks[place]);
    }
    groups.push_back({.ranks = nested, .backends = SplitOk(groups[1].backends, places)});
    groups.push_back({.ranks = all, .backends = std::move(world)});
    World& whole = groups.back().backends;

    std::vector<std::pair<std::size_t, std::unique_ptr<Scenario>>> steps;
    for (int step = 0; step < Rounds(60); ++step) {
      const std::size_t index = random() % 3 == 0 ? groups.size() - 1 : random() % groups.size();
      steps.emplace_back(index, MakeRandom(groups[index].backends, random));
    }
    INFO("round " << round);
    RunSteps(whole, groups, steps);
    world = std::move(groups.back().backends);
  }
}

// The groups, or the hosts, of worlds of some shapes; of each the number of ranks.
std::vector<int> GroupEnds(const std::vector<int>& ranks) {
  std::vector<int> ends(ranks.size());
  std::partial_sum(ranks.begin(), ranks.end(), ends.begin());
  return ends;
}

TEST_CASE("groups of ranks, and parts that cut across them, give the oracle's bits") {
  const auto groups = GENERATE(values<std::vector<int>>({{1, 1},
                                                         {2},
                                                         {1, 2},
                                                         {4},
                                                         {2, 2},
                                                         {3, 1},
                                                         {1, 3},
                                                         {1, 1, 1, 1},
                                                         {3, 3},
                                                         {2, 2, 2},
                                                         {1, 3, 2},
                                                         {4, 4}}));
  const std::vector<int> group_ends = GroupEnds(groups);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", groups " << Catch::Detail::stringify(groups));
  World world = MakeWorldOk(group_ends.back(), group_ends);
  CheckParts(world, random, Rounds(2));
}

TEST_CASE("overlapping parts of a world, mixed with it, give the oracle's bits") {
  const int ranks = GENERATE(1, 2, 3, 5);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << ranks << " ranks");
  World world = MakeWorldOk(ranks);
  CheckParts(world, random, Rounds(6));
}

TEST_CASE("pairs of ranks need not wait for others whose operations come between") {
  constexpr int kRanks = 4;
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed());
  World world = MakeWorldOk(kRanks);
  // The chain of pairs in which each rank's second operation is its neighbour's first.
  std::vector<Group> groups;
  for (const auto& pair : std::vector<std::vector<int>>{{2, 3}, {1, 2}, {0, 1}, {0, 3}}) {
    groups.push_back({.ranks = pair, .backends = SplitOk(world, pair)});
  }
  std::vector<std::pair<std::size_t, std::unique_ptr<Scenario>>> steps;
  for (int step = 0; step < 200; ++step) {
    const std::size_t index = random() % groups.size();
    const std::int64_t count = step % 4 == 0 ? 20000 : 3;
    steps.emplace_back(index, MakeAllreduce(groups[index].backends, {.rank_count = 2}, {count},
                                            static_cast<Placement>(random() % 3), random));
  }
  RunSteps(world, groups, steps);
}

TEST_CASE("ranks that are no part of this rank's world, or not of this rank, are refused") {
  World world = MakeWorldOk(3);
  for (const auto& ranks :
       std::vector<std::vector<int>>{{}, {1, 2}, {0, 3}, {0, 0}, {1, 0}, {-1, 0}}) {
    CHECK(world[0]->Split(ranks).status().code() == StatusCode::kInvalidArgument);
  }
  CHECK(world[0]->Split(std::vector<int>{0, 2}).ok());
}

// An operation on rank 0 that needs the others.
struct Lonely {
  const char* name;
  std::function<Status(Backend&, std::vector<float>&, std::vector<float>&)> run;
};

const std::vector<Lonely>& LonelyOperations() {
  static const std::vector<Lonely> operations = {
      {"barrier", [](Backend& backend, auto&, auto&) { return backend.Barrier(); }},
      {"allreduce",
       [](Backend& backend, auto& input, auto& output) {
         const ReducePiece piece{input.data(), output.data(),
                                 static_cast<std::int64_t>(input.size())};
         return backend.Allreduce({&piece, 1}, {.rank_count = 2});
       }},
      {"broadcast",
       [](Backend& backend, auto&, auto& output) {
         const BroadcastPiece piece{nullptr, output.data(), output.size() * sizeof(float)};
         return backend.Broadcast({&piece, 1}, 1);
       }},
      {"allgather",
       [](Backend& backend, auto& input, auto& output) {
         const std::size_t half = input.size() / 2 * sizeof(float);
         const std::array<std::size_t, 2> rank_bytes = {half, half};
         const GatherPiece piece{input.data(), output.data(), rank_bytes};
         return backend.Allgather({&piece, 1});
       }},
      {"reducescatter",
       [](Backend& backend, auto& input, auto& output) {
         const auto half = static_cast<std::int64_t>(input.size() / 2);
         const std::array<std::int64_t, 2> rank_elements = {half, half};
         const ScatterPiece piece{input.data(), output.data(), rank_elements};
         return backend.Reducescatter({&piece, 1}, {.rank_count = 2});
       }},
      {"alltoall", [](Backend& backend, auto& input, auto& output) {
         const std::size_t half = input.size() / 2 * sizeof(float);
         const std::array<std::size_t, 4> bytes = {half, half, half, half};
         const ExchangePiece piece{input.data(), output.data(), bytes};
         return backend.Alltoall({&piece, 1});
       }}};
  return operations;
}

// True once the kernel says that the thread sleeps.
bool BecomesAsleep(const std::atomic<long>& thread_id) {
  const auto give_up = std::chrono::steady_clock::now() + kHangLimit;
  while (std::chrono::steady_clock::now() < give_up) {
    std::ifstream file(Format("/proc/self/task/{}/stat", thread_id.load()));
    std::string text;
    std::getline(file, text);
    const std::size_t name_end = text.rfind(')');
    if (name_end != std::string::npos && text.substr(name_end + 2, 1) == "S") return true;
    std::this_thread::yield();
  }
  return false;
}

TEST_CASE("an abort ends the wait for an absent rank and leaves the input alone") {
  const std::size_t count = GENERATE(2, 100000);
  const auto& operation = LonelyOperations()[GENERATE(range(std::size_t{0}, std::size_t{6}))];
  INFO(operation.name << " of " << count);
  World world = MakeWorldOk(2);
  std::vector<float> input(count, 3.0F);
  std::vector<float> output(count, 4.0F);
  std::atomic<long> thread_id = 0;
  std::future<Status> result = std::async(std::launch::async, [&] {
    thread_id = ::syscall(SYS_gettid);
    return operation.run(*world[0], input, output);
  });
  const bool asleep = BecomesAsleep(thread_id);
  const Status cause(StatusCode::kUnavailable, "rank 1 has gone", 1);
  world[0]->Abort(cause);
  world[0]->Abort(Status(StatusCode::kInternal, "too late to be the cause"));
  const bool returned = result.wait_for(kHangLimit) == std::future_status::ready;
  CHECK(asleep);
  REQUIRE(returned);
  CHECK(result.get() == cause);
  CHECK(std::ranges::count(input, 3.0F) == std::ssize(input));
  // And every later call says the same at once.
  for (const Lonely& later : LonelyOperations()) {
    CHECK(later.run(*world[0], input, output) == cause);
  }
}

TEST_CASE("an abort reaches the world and all its parts, whichever heard of it") {
  const bool waits_in_part = GENERATE(true, false);
  const bool aborts_part = GENERATE(true, false);
  World world = MakeWorldOk(3);
  World part = SplitOk(world, {0, 2});
  World other = SplitOk(world, {0, 1});
  Backend& waiting = waits_in_part ? *part[0] : *world[0];
  std::vector<float> input(100000, 3.0F);
  std::vector<float> output(input.size());
  const ReducePiece piece{input.data(), output.data(), std::ssize(input)};
  std::atomic<long> thread_id = 0;
  std::future<Status> result = std::async(std::launch::async, [&] {
    thread_id = ::syscall(SYS_gettid);
    return waiting.Allreduce({&piece, 1}, {.rank_count = 2});
  });
  const bool asleep = BecomesAsleep(thread_id);
  const Status cause(StatusCode::kUnavailable, "rank 1 has gone", 1);
  (aborts_part ? *other[0] : *world[0]).Abort(cause);
  const bool returned = result.wait_for(kHangLimit) == std::future_status::ready;
  CHECK(asleep);
  REQUIRE(returned);
  CHECK(result.get() == cause);
  for (Backend* backend : {world[0].get(), part[0].get(), other[0].get()}) {
    CHECK(backend->Barrier() == cause);
    CHECK(backend->Allreduce({&piece, 1}, {.rank_count = 2}) == cause);
  }
}

TEST_CASE("an abort in the middle of a stream of operations reaches every rank") {
  const int ranks = GENERATE(2, 4);
  const std::int64_t count = GENERATE(64, 200000);
  World world = MakeWorldOk(ranks);
  const Watchdog watchdog(world);
  std::atomic<int> finished = 0;
  const Status cause(StatusCode::kUnavailable, "the world ends", 1);
  std::jthread killer([&] {
    while (finished.load() < 10) finished.wait(finished.load());
    for (const auto& backend : world) backend->Abort(cause);
  });
  const auto statuses = RunRanks(ranks, [&](int rank) {
    const std::vector<float> input(static_cast<std::size_t>(count), 1.0F);
    std::vector<float> output(input.size());
    const ReducePiece piece{input.data(), output.data(), count};
    Status status;
    while (status.ok()) {
      status = world[static_cast<std::size_t>(rank)]->Allreduce({&piece, 1}, {.rank_count = ranks});
      ++finished;
      finished.notify_all();
    }
    const bool intact = std::ranges::count(input, 1.0F) == std::ssize(input);
    return intact ? status : Status(StatusCode::kInternal, "the input was changed");
  });
  for (const Status& status : statuses) CHECK(status == cause);
}

TEST_CASE("allocated memory is zero, aligned and outlives the backend") {
  World world = MakeWorldOk(2);
  Result<SharedBuffer> buffer = world[0]->Allocate(100000);
  if (!buffer.ok()) {
    CHECK(buffer.status().code() == StatusCode::kNotSupported);
    return;
  }
  CHECK(buffer->bytes == 100000);
  CHECK(reinterpret_cast<std::uintptr_t>(buffer->data) % 64 == 0);
  auto* const bytes = static_cast<unsigned char*>(buffer->data);
  CHECK(std::count(bytes, bytes + buffer->bytes, 0) == std::ssize(std::vector<char>(100000)));
  world.clear();
  std::fill_n(bytes, buffer->bytes, static_cast<unsigned char>(7));
  CHECK(bytes[99999] == 7);
}

}  // namespace
}  // namespace hvl::collective::contract
