// The contract of collective::Backend over MPI, with processes as ranks. By default sums are in
// rank order here too, so results are the oracle's to the bit.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <numeric>

#include "csrc/base/str.h"
#include "csrc/collective/adasum.h"
#include "tests/cpp/mpi/team.h"
#include "tests/support/reference_reduce.h"

namespace hvl::mpi::test {
namespace {

using collective::contract::MakeAllgather;
using collective::contract::MakeAllreduce;
using collective::contract::MakeAlltoall;
using collective::contract::MakeBarrier;
using collective::contract::MakeBroadcast;
using collective::contract::MakeRandom;
using collective::contract::MakeReducescatter;
using collective::contract::Placement;
using hvl::test::RandomBetween;

constexpr std::array<DType, 10> kDTypes = {
#define HVL_X(enumerator, value, name, bytes) DType::enumerator,
    HVL_DTYPES(HVL_X)
#undef HVL_X
};
constexpr std::array<ReduceOp, 5> kOps = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                                          ReduceOp::kMax, ReduceOp::kProduct};

// Small, so that everything takes several steps; and as if rank 0 had a host of its own.
plugin::MpiOptions SmallSteps() {
  plugin::MpiOptions options;
  options.small_bytes = 1000;
  options.chunk_bytes = 4096;
  options.call_bytes = 10000;
  options.group_ends = {1, 2};
  return options;
}

plugin::MpiOptions Either(bool small_steps) {
  return small_steps ? SmallSteps() : plugin::MpiOptions();
}

// As many sizes as asked for, some of them 0.
template <typename Size>
std::vector<Size> Sizes(std::size_t count, std::int64_t most, std::mt19937_64& random) {
  std::vector<Size> sizes(count);
  for (Size& size : sizes) {
    size = static_cast<Size>(random() % 4 == 0 ? 0 : RandomBetween(0, most, random));
  }
  return sizes;
}

TEST_CASE("allreduce over MPI gives the oracle's bits for every type, operation and size") {
  Team team(Either(GENERATE(false, true)));
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kOps) {
      const tensor::ReduceSpec spec{.dtype = dtype, .op = op, .rank_count = team.size()};
      if (!tensor::CheckElementwise(spec).ok()) continue;
      for (const std::int64_t count : {0, 1, 13, 4096, 10007}) {
        team.RunAndCheck(
            MakeAllreduce(team.world(), spec, {count}, Placement::kOwn, team.random()));
      }
    }
  }
}

TEST_CASE("allreduce over MPI scales before and after, in one piece or many") {
  Team team(Either(GENERATE(false, true)));
  const int ranks = team.size();
  const tensor::ReduceSpec half{.dtype = DType::kFloat16, .prescale = 0.125, .rank_count = ranks};
  team.RunAndCheck(MakeAllreduce(team.world(), half, {7, 0, 100001, 1, 50000}, Placement::kMixed,
                                 team.random()));
  const tensor::ReduceSpec whole{
      .dtype = DType::kInt32, .prescale = 0.5, .postscale = 3.0, .rank_count = ranks};
  team.RunAndCheck(MakeAllreduce(team.world(), whole, {100001}, Placement::kOwn, team.random()));
  team.RunAndCheck(MakeAllreduce(team.world(), {.rank_count = ranks},
                                 Sizes<std::int64_t>(3000, 40, team.random()), Placement::kMixed,
                                 team.random()));
}

TEST_CASE("broadcast over MPI reaches every rank from every root") {
  Team team(Either(GENERATE(false, true)));
  for (int root = 0; root < team.size(); ++root) {
    for (const std::size_t bytes : {0, 1, 4096, 300007}) {
      team.RunAndCheck(MakeBroadcast(team.world(), {bytes}, root, Placement::kOwn, team.random()));
    }
    team.RunAndCheck(MakeBroadcast(team.world(), Sizes<std::size_t>(50, 3000, team.random()), root,
                                   Placement::kMixed, team.random()));
  }
}

TEST_CASE("allgather over MPI joins contributions of any size in rank order") {
  Team team(Either(GENERATE(false, true)));
  const auto ranks = static_cast<std::size_t>(team.size());
  for (const std::size_t pieces : {1, 1, 1, 2, 20}) {
    std::vector<std::vector<std::size_t>> bytes;
    for (std::size_t i = 0; i < pieces; ++i) {
      bytes.push_back(Sizes<std::size_t>(ranks, 30000, team.random()));
    }
    team.RunAndCheck(MakeAllgather(team.world(), bytes, Placement::kMixed, team.random()));
  }
}

TEST_CASE("reducescatter over MPI gives each rank its part of the oracle's allreduce") {
  Team team(Either(GENERATE(false, true)));
  const auto ranks = static_cast<std::size_t>(team.size());
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kInt64}) {
    const tensor::ReduceSpec spec{
        .dtype = dtype, .op = ReduceOp::kAverage, .rank_count = team.size()};
    for (const std::size_t pieces : {1, 1, 3, 20}) {
      std::vector<std::vector<std::int64_t>> elements;
      for (std::size_t i = 0; i < pieces; ++i) {
        elements.push_back(Sizes<std::int64_t>(ranks, 5000, team.random()));
      }
      team.RunAndCheck(
          MakeReducescatter(team.world(), spec, elements, Placement::kMixed, team.random()));
    }
  }
}

TEST_CASE("alltoall over MPI brings every part to its place") {
  Team team(Either(GENERATE(false, true)));
  const auto ranks = static_cast<std::size_t>(team.size());
  for (const std::size_t pieces : {1, 1, 1, 2, 20}) {
    std::vector<std::vector<std::size_t>> bytes;
    for (std::size_t i = 0; i < pieces; ++i) {
      bytes.push_back(Sizes<std::size_t>(ranks * ranks, 9000, team.random()));
    }
    team.RunAndCheck(MakeAlltoall(team.world(), bytes, Placement::kMixed, team.random()));
  }
}

TEST_CASE("hundreds of mixed operations over MPI give the oracle's bits") {
  Team team(Either(GENERATE(false, true)));
  for (int i = 0; i < 300; ++i) team.RunAndCheck(MakeRandom(team.world(), team.random()));
}

TEST_CASE("Adasum over MPI gives the same bits on every rank") {
  Team team;
  constexpr std::int64_t kCount = 1000;
  std::mt19937_64 random(Catch::rngSeed() + static_cast<unsigned>(team.rank()));
  const auto input = hvl::test::RandomElements(DType::kFloat32, kCount, random);
  std::vector<std::byte> output(input.size());
  const collective::ReducePiece piece{input.data(), output.data(), kCount};
  const Status status = collective::AdasumAllreduce(team.backend(), team.rank(), team.size(),
                                                    {&piece, 1}, DType::kFloat32, 1.0, 1.0);
  INFO(status.ToString());
  REQUIRE(status.ok());
  std::vector<std::byte> first = output;
  const collective::BroadcastPiece compared{first.data(), first.data(), first.size()};
  REQUIRE(team.backend().Broadcast({&compared, 1}, 0).ok());
  CHECK(first == output);
}

TEST_CASE("an undefined reduction over MPI is refused, and the next operation works") {
  Team team;
  bool value = true;
  const collective::ReducePiece piece{&value, &value, 1};
  const Status status =
      team.backend().Allreduce({&piece, 1}, {.dtype = DType::kBool, .rank_count = team.size()});
  CHECK(status.code() == StatusCode::kInvalidArgument);
  team.RunAndCheck(MakeBarrier(team.world()));
}

// Parts have communicators of their own, which are made when a part is first used.
TEST_CASE("overlapping parts of a world over MPI, mixed with it") {
  Team team;
  if (team.size() < 3) return;
  const std::vector<std::vector<int>> parts = {{0, 1}, {1, 2}, {0, team.size() - 1}, {0, 1, 2}};
  std::vector<std::unique_ptr<collective::Backend>> mine(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (std::ranges::find(parts[i], team.rank()) == parts[i].end()) {
      CHECK_FALSE(team.backend().Split(parts[i]).ok());
      continue;
    }
    auto part = team.backend().Split(parts[i]);
    INFO(part.status().ToString());
    REQUIRE(part.ok());
    mine[i] = std::move(part).value();
  }
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (mine[i] == nullptr) continue;
      const auto own = std::ranges::find(parts[i], team.rank()) - parts[i].begin();
      std::vector<std::int64_t> values(100, (own + 1) * (round + 1));
      const collective::ReducePiece piece{values.data(), values.data(), 100};
      const tensor::ReduceSpec sum{.dtype = DType::kInt64,
                                   .rank_count = static_cast<int>(parts[i].size())};
      const Status status = mine[i]->Allreduce({&piece, 1}, sum);
      INFO(status.ToString());
      REQUIRE(status.ok());
      const auto count = static_cast<std::int64_t>(parts[i].size());
      CHECK(values == std::vector<std::int64_t>(100, count * (count + 1) / 2 * (round + 1)));
    }
    team.RunAndCheck(MakeRandom(team.world(), team.random()));
  }
}

// An MPI has a few thousand of them at most.
TEST_CASE("communicators of parts over MPI are given back") {
  Team team;
  constexpr int kParts = 2500;
  const std::vector<int> all = [&team] {
    std::vector<int> ranks(static_cast<std::size_t>(team.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }();
  for (int i = 0; i < kParts; ++i) {
    auto part = team.backend().Split(all);
    REQUIRE(part.ok());
    const Status status = (*part)->Barrier();
    INFO(i << ": " << status.ToString());
    REQUIRE(status.ok());
  }
}

TEST_CASE("everybody hears what each process of MPI says, in MPI's order") {
  plugin::Mpi* const mpi = OpenPlugin().value();
  const plugin::MpiOptions options = WithPlace({});
  for (const std::size_t length : {0, 1, 100000}) {
    const std::string own(length * static_cast<std::size_t>(options.rank + 1), 'x');
    const auto said = mpi->Exchange(own, options, {});
    INFO(said.status().ToString());
    REQUIRE(said.ok());
    REQUIRE(said->size() == static_cast<std::size_t>(options.size));
    for (std::size_t place = 0; place < said->size(); ++place) {
      // Ranks are numbered against MPI's order.
      CHECK((*said)[place].size() == length * (said->size() - place));
    }
  }
}

TEST_CASE("sessions over MPI begin and end as often as one likes") {
  for (int i = 0; i < 20; ++i) {
    Team team;
    team.RunAndCheck(MakeRandom(team.world(), team.random()));
    CHECK(OpenPlugin().value()->threads_supported());
  }
}

}  // namespace
}  // namespace hvl::mpi::test
