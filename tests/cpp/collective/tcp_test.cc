// What only the tcp data plane has: its algorithms, bytes and connections, disagreeing and dying
// peers. That results are right for every type and size, and for process sets, is the contract
// suite's business.
#include "csrc/collective/tcp.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/collective/tcp_reduce.h"
#include "csrc/collective/tcp_transfer.h"
#include "csrc/collective/two_level.h"
#include "tests/support/data_ranks.h"
#include "tests/support/huge_parts.h"
#include "tests/support/ranks.h"

namespace hvl::collective {
namespace {

using test::RunRanks;
using Backends = std::vector<std::unique_ptr<TcpBackend>>;
using Floats = std::vector<float>;

Backends MakeRanks(int size, const TcpOptions& options) {
  Backends backends;
  for (auto& links : test::MakeDataRanks(size)) {
    auto backend = CreateTcpBackend(std::move(links), options);
    REQUIRE(backend.ok());
    backends.push_back(std::move(backend).value());
  }
  return backends;
}

// So that ranks hear of each other without waiting for third ones to connect.
void ConnectNeighbours(Backends& backends) {
  const auto size = static_cast<int>(backends.size());
  const auto met = RunRanks(
      size, [&](int rank) { return backends[static_cast<std::size_t>(rank)]->Barrier().ok(); });
  REQUIRE(met == std::vector<bool>(backends.size(), true));
}

// Numbers whose sums depend on the order of the additions.
Floats Values(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::uniform_real_distribution<float> value(-1e3F, 1e3F);
  Floats values(count);
  for (float& v : values) v = value(random);
  return values;
}

tensor::ReduceSpec Spec(int size, ReduceOp op = ReduceOp::kSum) {
  tensor::ReduceSpec spec;
  spec.op = op;
  spec.rank_count = size;
  return spec;
}

Floats Expected(int size, std::size_t count, const tensor::ReduceSpec& spec) {
  std::vector<Floats> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(Values(rank, count));
  for (const Floats& input : inputs) pointers.push_back(input.data());
  Floats output(count);
  tensor::Reduce(spec, pointers, output.data(), static_cast<std::int64_t>(count));
  return output;
}

// An allreduce in place on every rank.
std::vector<Floats> AllreduceInPlace(Backends& backends, std::size_t count,
                                     const tensor::ReduceSpec& spec) {
  return RunRanks(static_cast<int>(backends.size()), [&](int rank) {
    Floats values = Values(rank, count);
    const ReducePiece piece{values.data(), values.data(), static_cast<std::int64_t>(count)};
    const Status status = backends[static_cast<std::size_t>(rank)]->Allreduce({&piece, 1}, spec);
    return status.ok() ? values : Floats();
  });
}

std::uint64_t PayloadBytes(const Backends& backends) {
  std::uint64_t bytes = 0;
  for (const auto& backend : backends) bytes += backend->traffic().payload_bytes_sent;
  return bytes;
}

// One way of reducing, and many chunks also of small vectors.
TcpOptions SmallChunks(ReduceWay way) {
  TcpOptions options;
  options.small_bytes = 0;
  options.chunk_bytes = 256;
  options.reduce_way = way;
  return options;
}

constexpr std::array kAllWays = {ReduceWay::kGather, ReduceWay::kPairwise, ReduceWay::kChain,
                                 ReduceWay::kHalving, ReduceWay::kRing};
constexpr std::array kRankOrderWays = {ReduceWay::kGather, ReduceWay::kPairwise, ReduceWay::kChain};

template <std::size_t kCount>
ReduceWay AnyOf(const std::array<ReduceWay, kCount>& ways) {
  return GENERATE_REF(from_range(ways.begin(), ways.end()));
}

}  // namespace

TEST_CASE("an allreduce sends twice (N-1) K bytes in total, whatever N and K", "[tcp]") {
  const int size = GENERATE(2, 3, 4, 8);
  const ReduceWay way =
      GENERATE(ReduceWay::kPairwise, ReduceWay::kChain, ReduceWay::kHalving, ReduceWay::kRing);
  if (way == ReduceWay::kHalving && size == 3) return;  // has bytes of its own, see below
  Backends backends = MakeRanks(size, SmallChunks(way));
  std::uint64_t before = 0;
  for (const std::size_t count : {1U, 2U, 3U, 7U, 64U, 1001U, 100'000U}) {
    INFO(size << " ranks, " << count << " elements, way " << static_cast<int>(way));
    const auto results = AllreduceInPlace(backends, count, Spec(size));
    for (const Floats& result : results) {
      REQUIRE(result.size() == count);
      CHECK(result == results.front());
    }
    const std::uint64_t sent = PayloadBytes(backends) - before;
    CHECK(sent == 2 * static_cast<std::uint64_t>(size - 1) * 4 * count);
    before += sent;
  }
}

TEST_CASE("in a large allreduce every rank sends its share", "[tcp]") {
  constexpr int kSize = 4;
  const ReduceWay way = GENERATE(ReduceWay::kPairwise, ReduceWay::kHalving, ReduceWay::kRing);
  Backends backends = MakeRanks(kSize, SmallChunks(way));
  AllreduceInPlace(backends, 40'000, Spec(kSize));
  for (const auto& backend : backends)
    CHECK(backend->traffic().payload_bytes_sent == std::uint64_t{2} * 3 * 40'000);
}

TEST_CASE("halving with a number of ranks that is no power of two gives some to their neighbours",
          "[tcp]") {
  constexpr std::uint64_t kBytes = 40'000;
  Backends backends = MakeRanks(6, SmallChunks(ReduceWay::kHalving));
  AllreduceInPlace(backends, kBytes / 4, Spec(6));
  // Ranks 0 and 2 give all and get all; the four others are a world of four.
  for (const std::size_t rank : {0U, 2U})
    CHECK(backends[rank]->traffic().payload_bytes_sent == kBytes);
  for (const std::size_t rank : {1U, 3U})
    CHECK(backends[rank]->traffic().payload_bytes_sent == kBytes + 6 * kBytes / 4);
  for (const std::size_t rank : {4U, 5U})
    CHECK(backends[rank]->traffic().payload_bytes_sent == 6 * kBytes / 4);
}

TEST_CASE("a reduce-scatter sends what others need and no more, or all of it up a chain", "[tcp]") {
  constexpr int kSize = 4;
  const ReduceWay way = GENERATE(ReduceWay::kPairwise, ReduceWay::kChain);
  Backends backends = MakeRanks(kSize, SmallChunks(way));
  const std::vector<std::int64_t> parts = {10'000, 0, 20'000, 30'000};
  const auto results = RunRanks(kSize, [&](int rank) {
    const Floats input = Values(rank, 60'000);
    Floats output(static_cast<std::size_t>(parts[static_cast<std::size_t>(rank)]));
    const ScatterPiece piece{input.data(), output.data(), parts};
    const Status status =
        backends[static_cast<std::size_t>(rank)]->Reducescatter({&piece, 1}, Spec(kSize));
    return status.ok() ? output : Floats(1);
  });
  const Floats expected = Expected(kSize, 60'000, Spec(kSize));
  Floats joined;
  for (const Floats& result : results) joined.insert(joined.end(), result.begin(), result.end());
  CHECK(joined == expected);
  // Up: all of it over each of three links. Down: the parts of ranks 0 to 2, 0 to 1, and 0.
  const std::uint64_t elements =
      3 * 60'000 + (way == ReduceWay::kChain ? 30'000 + 10'000 + 10'000 : 0);
  CHECK(PayloadBytes(backends) == 4 * elements);
}

TEST_CASE("sums in rank order are bitwise those of one reduction, whatever the chunks", "[tcp]") {
  const int size = GENERATE(1, 2, 3, 4, 8);
  const std::size_t count = GENERATE(1U, 63U, 5000U, 100'003U);
  TcpOptions options = SmallChunks(AnyOf(kRankOrderWays));
  options.chunk_bytes = GENERATE(std::size_t{64}, std::size_t{65536});
  Backends backends = MakeRanks(size, options);
  const tensor::ReduceSpec spec = Spec(size, ReduceOp::kAverage);
  const Floats expected = Expected(size, count, spec);
  for (const Floats& result : AllreduceInPlace(backends, count, spec)) CHECK(result == expected);
}

TEST_CASE("sums in other orders are the same up to rounding, and the same everywhere", "[tcp]") {
  const int size = GENERATE(2, 3, 5, 8);
  const std::size_t count = GENERATE(3U, 100'003U);
  const ReduceWay way = GENERATE(ReduceWay::kHalving, ReduceWay::kRing);
  tensor::ReduceSpec spec = Spec(size, GENERATE(ReduceOp::kSum, ReduceOp::kAverage));
  spec.postscale = 0.5;
  Backends backends = MakeRanks(size, SmallChunks(way));
  const Floats expected = Expected(size, count, spec);
  const auto results = AllreduceInPlace(backends, count, spec);
  for (const Floats& result : results) {
    REQUIRE(result.size() == count);
    CHECK(result == results.front());
    // At most `size` roundings of numbers below size * 1e3, each by 2^-24 of it.
    const float tolerance = static_cast<float>(size * size) * 1e3F / 16777216.0F;
    for (std::size_t i = 0; i < count; ++i)
      if (std::abs(result[i] - expected[i]) > tolerance) FAIL(i << ": " << result[i]);
  }
}

TEST_CASE("integers that wrap have the oracle's bits whatever the way", "[tcp]") {
  const int size = GENERATE(2, 3, 5, 8);
  const std::size_t count = GENERATE(1U, 4U, 30'001U);
  Backends backends = MakeRanks(size, SmallChunks(AnyOf(kAllWays)));
  tensor::ReduceSpec spec =
      Spec(size, GENERATE(ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax));
  spec.dtype = DType::kInt16;
  using Numbers = std::vector<std::int16_t>;
  const auto input = [count](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank) + 7);
    Numbers values(count);
    for (std::int16_t& value : values) value = static_cast<std::int16_t>(random());
    return values;
  };
  std::vector<Numbers> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(input(rank));
  for (const Numbers& values : inputs) pointers.push_back(values.data());
  Numbers expected(count);
  tensor::Reduce(spec, pointers, expected.data(), static_cast<std::int64_t>(count));
  const auto results = RunRanks(size, [&](int rank) {
    const Numbers values = input(rank);
    Numbers output(count);
    const ReducePiece piece{values.data(), output.data(), static_cast<std::int64_t>(count)};
    const Status status = backends[static_cast<std::size_t>(rank)]->Allreduce({&piece, 1}, spec);
    return status.ok() ? output : Numbers();
  });
  for (const Numbers& result : results) CHECK((result == expected));
}

TEST_CASE("the way of a reduction is chosen by size, type and the order that is asked for",
          "[tcp]") {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  const TcpOptions ordered;
  TcpOptions free;
  free.reproducible = false;
  const auto choose = [](int ranks, std::size_t bytes, const TcpOptions& options,
                         DType dtype = DType::kFloat32, bool everywhere = true) {
    return ChooseReduceWay({.ranks = ranks,
                            .bytes = bytes,
                            .everywhere = everywhere,
                            .spec = {.dtype = dtype, .rank_count = ranks}},
                           options);
  };
  CHECK(choose(2, 32 << 10, ordered) == ReduceWay::kGather);
  CHECK(choose(64, 500, free) == ReduceWay::kGather);
  CHECK(choose(64, 600, ordered) == ReduceWay::kChain);
  CHECK(choose(2, kMiB, ordered) == ReduceWay::kPairwise);
  CHECK(choose(32, 64 * kMiB, ordered) == ReduceWay::kPairwise);
  CHECK(choose(33, 64 * kMiB, ordered) == ReduceWay::kChain);
  // Sums of 16-bit floats are made wider than they travel, unless all go to one rank.
  CHECK(choose(32, 64 * kMiB, ordered, DType::kBfloat16) == ReduceWay::kPairwise);
  CHECK(choose(33, 64 * kMiB, ordered, DType::kBfloat16) == ReduceWay::kWidened);
  CHECK(choose(33, 64 * kMiB, free, DType::kBfloat16) == ReduceWay::kRing);
  CHECK(choose(8, 256 << 10, free) == ReduceWay::kHalving);
  CHECK(choose(8, 256 << 10, ordered, DType::kInt32) == ReduceWay::kHalving);
  CHECK(choose(8, 64 * kMiB, ordered, DType::kInt32) == ReduceWay::kRing);
  CHECK(choose(5, kMiB, free) == ReduceWay::kRing);
  CHECK(choose(64, 64 * kMiB, free, DType::kFloat32, false) == ReduceWay::kChain);
}

TEST_CASE("where partial sums would lose something, none travels", "[tcp]") {
  constexpr int kSize = 3;
  Backends backends = MakeRanks(kSize, SmallChunks(AnyOf(kAllWays)));
  tensor::ReduceSpec spec = Spec(kSize, ReduceOp::kAverage);
  spec.dtype = DType::kInt8;
  const auto results = RunRanks(kSize, [&](int rank) {
    std::vector<std::int8_t> values(1000, 100);  // the sum of three does not fit
    const ReducePiece piece{values.data(), values.data(), 1000};
    const Status status = backends[static_cast<std::size_t>(rank)]->Allreduce({&piece, 1}, spec);
    return status.ok() ? values : std::vector<std::int8_t>();
  });
  for (const auto& result : results) CHECK(result == std::vector<std::int8_t>(1000, 100));
}

TEST_CASE("a fused vector may lie in many places", "[tcp]") {
  constexpr int kSize = 3;
  Backends backends = MakeRanks(kSize, SmallChunks(AnyOf(kAllWays)));
  constexpr std::size_t kPieces = 300;
  const auto results = RunRanks(kSize, [&](int rank) {
    std::vector<Floats> inputs;
    std::vector<Floats> outputs;
    std::vector<ReducePiece> pieces;
    for (std::size_t i = 0; i < kPieces; ++i) {
      const std::size_t count = i * 7 % 23;  // some are empty
      inputs.emplace_back(count, static_cast<float>(rank + 1));
      outputs.emplace_back(count, -1.0F);
      pieces.push_back({inputs[i].data(), outputs[i].data(), static_cast<std::int64_t>(count)});
    }
    const Status status = backends[static_cast<std::size_t>(rank)]->Allreduce(pieces, Spec(kSize));
    bool good = status.ok();
    for (const Floats& output : outputs)
      good = good && std::ranges::all_of(output, [](float v) { return v == 6.0F; });
    return good;
  });
  CHECK(results == std::vector<bool>(kSize, true));
}

TEST_CASE("a broadcast sends K bytes once per other rank, as a tree and as a chain", "[tcp]") {
  const int size = GENERATE(2, 3, 7, 8);
  TcpOptions options;
  options.small_bytes = 1000;
  Backends backends = MakeRanks(size, options);
  std::uint64_t before = 0;
  for (const std::size_t bytes : {1U, 1000U, 1001U, 300'000U}) {
    for (int root = 0; root < size; ++root) {
      const auto results = RunRanks(size, [&](int rank) {
        std::string data(bytes, rank == root ? 'r' : '-');
        const BroadcastPiece piece{data.data(), data.data(), bytes};
        const Status status =
            backends[static_cast<std::size_t>(rank)]->Broadcast({&piece, 1}, root);
        return status.ok() ? data : status.ToString();
      });
      for (const std::string& result : results) CHECK((result == std::string(bytes, 'r')));
      const std::uint64_t sent = PayloadBytes(backends) - before;
      CHECK(sent == static_cast<std::uint64_t>(size - 1) * bytes);
      before += sent;
    }
  }
}

TEST_CASE("ranks that run different operations both hear of both", "[tcp]") {
  Backends backends = MakeRanks(2, TcpOptions());
  const auto statuses = RunRanks(2, [&](int rank) {
    Floats values(10);
    const ReducePiece piece{values.data(), values.data(), rank == 0 ? 10 : 9};
    return backends[static_cast<std::size_t>(rank)]->Allreduce({&piece, 1}, Spec(2));
  });
  for (int rank = 0; rank < 2; ++rank) {
    const Status& status = statuses[static_cast<std::size_t>(rank)];
    CHECK(status.code() == StatusCode::kInternal);
    CHECK(status.culprit_rank() == 1 - rank);
    CHECK_THAT(status.message(), Catch::Contains("allreduce of 40 bytes (operation 1") &&
                                     Catch::Contains("allreduce of 36 bytes (operation 1"));
    CHECK(backends[static_cast<std::size_t>(rank)]->Barrier() == status);
  }
}

TEST_CASE("an allgather sends every slice to everybody once, in few steps and around a ring",
          "[tcp]") {
  const int size = GENERATE(2, 3, 5, 8);
  const std::size_t bytes_each = GENERATE(1U, 700U, 50'001U);
  Backends backends = MakeRanks(size, TcpOptions());
  std::vector<std::size_t> rank_bytes(static_cast<std::size_t>(size), bytes_each);
  rank_bytes[1] = 0;
  const auto results = RunRanks(size, [&](int rank) {
    const std::string input(bytes_each, static_cast<char>('a' + rank));
    std::string output(bytes_each * static_cast<std::size_t>(size - 1), '-');
    const GatherPiece piece{input.data(), output.data(), rank_bytes};
    const Status status = backends[static_cast<std::size_t>(rank)]->Allgather({&piece, 1});
    return status.ok() ? output : status.ToString();
  });
  std::string expected;
  for (int rank = 0; rank < size; ++rank)
    if (rank != 1) expected += std::string(bytes_each, static_cast<char>('a' + rank));
  for (const std::string& result : results) CHECK((result == expected));
  const auto others = static_cast<std::uint64_t>(size - 1);
  CHECK(PayloadBytes(backends) == others * others * bytes_each);
}

namespace {

template <typename T>
Status SumOfOnes(Backend& backend, int size, std::size_t count, T one, T sum, DType dtype,
                 tensor::ReduceSpec spec) {
  spec.dtype = dtype;
  std::vector<T> values(count, one);
  const ReducePiece piece{values.data(), values.data(), static_cast<std::int64_t>(count)};
  HVL_RETURN_IF_ERROR(backend.Allreduce({&piece, 1}, spec));
  const auto each = static_cast<std::int64_t>(count) / size;
  const std::vector<std::int64_t> parts(static_cast<std::size_t>(size), each);
  std::vector<T> part(static_cast<std::size_t>(each));
  const std::vector<T> again(count, one);
  const ScatterPiece scatter{again.data(), part.data(), parts};
  HVL_RETURN_IF_ERROR(backend.Reducescatter({&scatter, 1}, spec));
  const auto right = [sum](T value) { return value == sum; };
  const bool good = std::ranges::all_of(values, right) && std::ranges::all_of(part, right);
  return good ? Status::Ok() : Status(StatusCode::kInternal, "wrong sum");
}

// All kinds of reductions, among them those whose partial sums do not fit into their type.
Status RunReductions(Backend& backend, int size, std::size_t count) {
  const auto sum = [size](auto one) { return static_cast<decltype(one)>(size) * one; };
  const tensor::ReduceSpec plain = Spec(size);
  tensor::ReduceSpec scaled = plain;
  scaled.prescale = 2.0;
  const tensor::ReduceSpec average = Spec(size, ReduceOp::kAverage);
  HVL_RETURN_IF_ERROR(SumOfOnes(backend, size, count, 1.0F, sum(1.0F), DType::kFloat32, plain));
  HVL_RETURN_IF_ERROR(SumOfOnes(backend, size, count, 1.0F, sum(2.0F), DType::kFloat32, scaled));
  HVL_RETURN_IF_ERROR(SumOfOnes(backend, size, count, 1, sum(1), DType::kInt32, plain));
  HVL_RETURN_IF_ERROR(SumOfOnes(backend, size, count, 100, 100, DType::kInt32, average));
  const auto byte = std::uint8_t{200};
  HVL_RETURN_IF_ERROR(SumOfOnes(backend, size, count, byte, byte, DType::kUint8, average));
  const std::int64_t large = std::int64_t{-1} << 62;
  HVL_RETURN_IF_ERROR(SumOfOnes(backend, size, count, large, large, DType::kInt64, average));
  // 128, 64 and 1 in bfloat16: powers of two.
  HVL_CHECK(size == 64);
  const std::uint16_t one = 0x3f80;
  HVL_RETURN_IF_ERROR(
      SumOfOnes(backend, size, count, one, std::uint16_t{0x4300}, DType::kBfloat16, scaled));
  return SumOfOnes(backend, size, count, one, std::uint16_t{0x4280}, DType::kBfloat16, plain);
}

Status RunAlltoall(Backend& backend, int rank, int size, std::size_t bytes_each) {
  const auto ranks = static_cast<std::size_t>(size);
  std::string input;
  std::string expected;
  for (int peer = 0; peer < size; ++peer) {
    input.append(bytes_each, static_cast<char>(rank + 2 * peer));
    expected.append(bytes_each, static_cast<char>(peer + 2 * rank));
  }
  std::string output(input.size(), '-');
  const std::vector<std::size_t> bytes(ranks * ranks, bytes_each);
  const ExchangePiece piece{input.data(), output.data(), bytes};
  HVL_RETURN_IF_ERROR(backend.Alltoall({&piece, 1}));
  return output == expected ? Status::Ok() : Status(StatusCode::kInternal, "wrong exchange");
}

// Every kind of operation, of sizes for which there are different ways.
Status RunAllOperations(Backend& backend, int rank, int size) {
  for (const std::size_t count : {1U, 100U, 20'000U, 100'000U}) {
    HVL_RETURN_IF_ERROR(RunReductions(backend, size, count));
    std::string values(count, 'v');
    for (const int root : {0, 17, size - 1}) {
      const BroadcastPiece broadcast{values.data(), values.data(), count};
      HVL_RETURN_IF_ERROR(backend.Broadcast({&broadcast, 1}, root));
    }
    const std::vector<std::size_t> rank_bytes(static_cast<std::size_t>(size), count / 100);
    std::string gathered(count / 100 * static_cast<std::size_t>(size), '-');
    const GatherPiece gather{values.data(), gathered.data(), rank_bytes};
    HVL_RETURN_IF_ERROR(backend.Allgather({&gather, 1}));
    HVL_RETURN_IF_ERROR(RunAlltoall(backend, rank, size, count / 10));
  }
  return backend.Barrier();
}

// Around a ring: one to either side at each distance of a power of two (half way around it is the
// same one). In a grid of eight rows: seven in the row, seven in the column, of which some are at
// such distances.
constexpr int kMostConnections = 11 + 14;

}  // namespace

TEST_CASE("64 ranks need few connections each, whatever they do", "[tcp]") {
  constexpr int kSize = 64;
  const int in_group = GENERATE(64, 8, 1);
  const bool in_groups = in_group < kSize;
  TcpOptions options;
  options.chunk_bytes = 16 << 10;
  for (int end = in_group; in_groups && end <= kSize; end += in_group)
    options.group_ends.push_back(end);
  std::vector<std::unique_ptr<TcpBackend>> flat;
  std::vector<std::unique_ptr<TwoLevelBackend>> grouped;
  std::vector<Backend*> backends;
  for (auto& links : test::MakeDataRanks(kSize)) {
    if (in_groups) {
      grouped.push_back(CreateGroupedTcpBackend(std::move(links), options).value());
      backends.push_back(grouped.back().get());
    } else {
      flat.push_back(CreateTcpBackend(std::move(links), options).value());
      backends.push_back(flat.back().get());
    }
  }
  const auto connections = [&](std::size_t rank) {
    return in_groups ? grouped[rank]->traffic().connections : flat[rank]->traffic().connections;
  };
  for (std::size_t rank = 0; rank < kSize; ++rank) CHECK(connections(rank) == 0);
  const auto statuses = RunRanks(kSize, [&](int rank) {
    return RunAllOperations(*backends[static_cast<std::size_t>(rank)], rank, kSize);
  });
  for (const Status& status : statuses) REQUIRE(status == Status::Ok());
  for (std::size_t rank = 0; rank < kSize; ++rank) CHECK(connections(rank) <= kMostConnections);
}

// As the process set of a pair, which is what send and recv use.
TEST_CASE("what one rank sends to another goes straight there, and nobody else hears of it",
          "[tcp]") {
  const std::size_t bytes = GENERATE(1U, 5'000U, 3'000'001U);
  Backends backends = MakeRanks(4, TcpOptions());
  const std::vector<int> pair = {1, 3};
  const auto received = RunRanks(2, [&](int place) -> std::string {
    Backend& own = *backends[static_cast<std::size_t>(pair[static_cast<std::size_t>(place)])];
    const auto part = own.Split(pair);
    if (!part.ok()) return part.status().ToString();
    std::string data(bytes, place == 1 ? 's' : '-');
    const BroadcastPiece piece{data.data(), data.data(), bytes};
    const Status status = (*part)->Broadcast({&piece, 1}, 1);
    return status.ok() ? data : status.ToString();
  });
  CHECK((received[0] == std::string(bytes, 's')));
  CHECK(backends[3]->traffic().payload_bytes_sent == bytes);
  CHECK(backends[3]->traffic().header_bytes_sent == TransferHeader::kBytes);
  CHECK(PayloadBytes(backends) == bytes);
  CHECK(backends[1]->traffic().connections == 1);
  for (const std::size_t bystander : {0U, 2U})
    CHECK(backends[bystander]->traffic().connections == 0);
}

TEST_CASE("through a grid a byte goes once to a neighbour and twice to others", "[tcp]") {
  constexpr int kSize = 9;
  TcpOptions options;
  options.most_pairwise_ranks = 4;
  Backends backends = MakeRanks(kSize, options);
  // More than a turn passes on at a time.
  const std::size_t each = GENERATE(1U, 1'000'003U);
  const auto statuses = RunRanks(kSize, [&](int rank) {
    return RunAlltoall(*backends[static_cast<std::size_t>(rank)], rank, kSize, each);
  });
  for (const Status& status : statuses) REQUIRE(status == Status::Ok());
  // Of eight others four are in the own row or column.
  CHECK(PayloadBytes(backends) == std::uint64_t{kSize} * (4 + 2 * 4) * each);
  for (const auto& backend : backends) CHECK(backend->traffic().connections == 4);
}

namespace {

// What a session does when a data plane or a control link fails: tells its other ranks.
std::vector<Status> RunUntilOneFails(Backends& backends, int size, const tensor::ReduceSpec& spec) {
  return RunRanks(size, [&](int rank) {
    Floats values(300'000);
    const ReducePiece piece{values.data(), values.data(), std::ssize(values)};
    Status status;
    while (status.ok())
      status = backends[static_cast<std::size_t>(rank)]->Allreduce({&piece, 1}, spec);
    for (int other = 0; other < size; ++other)
      backends[static_cast<std::size_t>(other)]->Abort(status);
    return status;
  });
}

}  // namespace

TEST_CASE("a peer that goes away in the middle of any way ends it with the peer's rank", "[tcp]") {
  constexpr int kSize = 4;
  const ReduceWay way = AnyOf(kAllWays);
  INFO("way " << static_cast<int>(way));
  Backends backends = MakeRanks(kSize, SmallChunks(way));
  const tensor::ReduceSpec spec = Spec(kSize);
  // Rank 3 goes when its part of an operation is under way.
  std::jthread victim([&backends, &spec] {
    Floats values(300'000);
    const ReducePiece piece{values.data(), values.data(), std::ssize(values)};
    for (int i = 0; i < 3; ++i)
      if (!backends[3]->Allreduce({&piece, 1}, spec).ok()) return;
    backends[3].reset();
  });
  for (const Status& status : RunUntilOneFails(backends, kSize - 1, spec)) {
    CHECK(status.code() == StatusCode::kUnavailable);
    CHECK(status.culprit_rank() == 3);
    CHECK_THAT(status.message(), Catch::Contains("lost rank 3 during allreduce"));
  }
}

TEST_CASE("a receiver that comes late is waited for, with full sockets", "[tcp]") {
  constexpr int kSize = 3;
  constexpr std::size_t kCount = 8'000'000;
  TcpOptions options;
  options.reduce_way = AnyOf(kAllWays);
  Backends backends = MakeRanks(kSize, options);
  const auto results = RunRanks(kSize, [&](int rank) {
    Floats values(kCount, 1.0F);
    Backend& backend = *backends[static_cast<std::size_t>(rank)];
    if (!backend.Barrier().ok()) return false;
    // The others have begun to send, and go on until the sockets are full.
    while (rank == 1 && backends[0]->traffic().payload_bytes_sent == 0) std::this_thread::yield();
    const ReducePiece piece{values.data(), values.data(), std::ssize(values)};
    const Status status = backend.Allreduce({&piece, 1}, Spec(kSize));
    return status.ok() && std::ranges::all_of(values, [](float value) { return value == 3.0F; });
  });
  CHECK(results == std::vector<bool>(kSize, true));
}

TEST_CASE("a lost peer ends a process set and everything that shares its links", "[tcp]") {
  Backends backends = MakeRanks(3, TcpOptions());
  const std::vector<int> with_dead = {1, 2};
  const std::vector<int> without = {0, 1};
  const auto part = backends[1]->Split(with_dead);
  const auto other = backends[1]->Split(without);
  REQUIRE((part.ok() && other.ok()));
  ConnectNeighbours(backends);
  backends[2].reset();
  const Status status = (*part)->Barrier();
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(status.culprit_rank() == 2);
  CHECK_THAT(status.message(), Catch::Contains("lost rank 2 during barrier"));
  CHECK((*other)->Barrier() == status);
  CHECK(backends[1]->Barrier() == status);
}

TEST_CASE("ranks that work in different process sets both hear of it", "[tcp]") {
  Backends backends = MakeRanks(3, SmallChunks(ReduceWay::kPairwise));
  ConnectNeighbours(backends);
  const auto statuses = RunRanks(2, [&](int place) -> Status {
    const std::vector<int> ranks = place == 0 ? std::vector{1, 2} : std::vector{0, 1, 2};
    HVL_ASSIGN_OR_RETURN(const auto part,
                         backends[static_cast<std::size_t>(place + 1)]->Split(ranks));
    Floats values(10);
    const ReducePiece piece{values.data(), values.data(), 10};
    return part->Allreduce({&piece, 1}, Spec(2));
  });
  for (std::size_t place = 0; place < 2; ++place) {
    CHECK(statuses[place].code() == StatusCode::kInternal);
    CHECK(statuses[place].culprit_rank() == 2 - static_cast<int>(place));
    CHECK_THAT(statuses[place].message(), Catch::Contains("process set with tag"));
  }
}

// The thread sanitizer keeps four bytes for each one and each mapping.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("parts of more than 2^31 bytes find their rank over sockets", "[tcp]") {
  Backends backends = MakeRanks(2, TcpOptions());
  const auto wrong = RunRanks(2, [&](int rank) {
    return test::ExchangeHugeParts(*backends[static_cast<std::size_t>(rank)], rank);
  });
  for (const std::string& complaint : wrong) CHECK(complaint.empty());
}
#endif

TEST_CASE("abort ends an operation that waits, and all later ones, with the first cause", "[tcp]") {
  Backends backends = MakeRanks(2, TcpOptions());
  const Status cause(StatusCode::kUnavailable, "rank 1 was eaten", 1);
  std::thread waiting([&] { CHECK(backends[0]->Barrier() == cause); });
  backends[0]->Abort(cause);
  backends[0]->Abort(Status(StatusCode::kAborted, "too late"));
  waiting.join();
  char byte = 0;
  const BroadcastPiece broadcast{&byte, &byte, 1};
  const std::vector<std::size_t> counts = {1, 1};
  const GatherPiece gather{&byte, &byte, counts};
  CHECK(backends[0]->Allreduce({}, Spec(2)) == cause);
  CHECK(backends[0]->Broadcast({&broadcast, 1}, 0) == cause);
  CHECK(backends[0]->Allgather({&gather, 1}) == cause);
  CHECK(backends[0]->Allocate(10).status().code() == StatusCode::kNotSupported);
}

TEST_CASE("a header survives the wire", "[tcp]") {
  TransferHeader header;
  header.sequence = 0xFFFFFFFF;
  header.kind = OpKind::kBroadcast;
  header.phase = 255;
  header.root = (1 << 20) - 1;
  header.bytes = 0xBA9876543210;
  header.part = 0xFEDC;
  CHECK(TransferHeader::Decode(header.Encode()) == header);
  CHECK(TransferHeader::Decode(TransferHeader().Encode()) == TransferHeader());
}

TEST_CASE("slices of a scatter list keep the order and skip what is empty", "[tcp]") {
  const std::string a = "abc";
  const std::string b = "defgh";
  ScatterList list;
  list.Add(a.data(), a.size());
  list.Add(nullptr, 0);
  list.Add(b.data(), b.size());
  const auto text = [](ScatterList part) {
    std::string out;
    while (out.size() < part.bytes()) {
      const auto memory = part.At(out.size());
      out.append(reinterpret_cast<const char*>(memory.data()), memory.size());
    }
    return out;
  };
  for (std::size_t begin = 0; begin <= 8; ++begin)
    for (std::size_t end = begin; end <= 8; ++end)
      CHECK(text(list.Slice(begin, end)) == std::string("abcdefgh").substr(begin, end - begin));
}

}  // namespace hvl::collective
