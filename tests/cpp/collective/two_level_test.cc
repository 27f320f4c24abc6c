// What only the data plane of several hosts has: bytes between hosts, and errors that name ranks of
// the world. That its results are right for every type, size and shape is the contract suite's
// business.
#include "csrc/collective/two_level.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/support/mesh_ranks.h"

namespace hvl::collective {
namespace {

using test::RunRanks;
using Backends = std::vector<std::unique_ptr<TwoLevelBackend>>;

// Never everything to everybody, so that bytes can be counted exactly.
Backends Connect(const std::vector<int>& ranks_per_host) {
  auto meshes = test::JoinHosts(ranks_per_host);
  REQUIRE(meshes.ok());
  const TwoLevelOptions options{
      .local = {.staging_bytes = 256 << 10, .heap_bytes = std::size_t{64} << 20},
      .tcp = {.small_bytes = 0},
      .block_bytes = 100'000};
  const int ranks = static_cast<int>(meshes->size());
  auto created = RunRanks(ranks, [&](int rank) {
    return CreateTwoLevelBackend(*(*meshes)[static_cast<std::size_t>(rank)], options, Logger());
  });
  Backends backends;
  for (auto& backend : created) {
    INFO(backend.status().ToString());
    REQUIRE(backend.ok());
    backends.push_back(std::move(backend).value());
  }
  return backends;
}

using Operation = std::function<Status(Backend&, int rank)>;

// Payload bytes that each host sends in the operation.
std::vector<std::uint64_t> BytesSent(Backends& backends, const std::vector<int>& ranks_per_host,
                                     const Operation& operation) {
  const auto sent = [&] {
    std::vector<std::uint64_t> by_host;
    std::size_t rank = 0;
    for (const int ranks : ranks_per_host) {
      by_host.push_back(0);
      for (int index = 0; index < ranks; ++index) {
        by_host.back() += backends[rank++]->traffic().payload_bytes_sent;
      }
    }
    return by_host;
  };
  const auto before = sent();
  const auto statuses = RunRanks(static_cast<int>(backends.size()), [&](int rank) {
    return operation(*backends[static_cast<std::size_t>(rank)], rank);
  });
  for (const Status& status : statuses) {
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
  auto difference = sent();
  for (std::size_t host = 0; host < difference.size(); ++host) difference[host] -= before[host];
  return difference;
}

std::uint64_t Total(const std::vector<std::uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

struct Shape {
  std::vector<int> ranks_per_host;
  std::size_t hosts() const { return ranks_per_host.size(); }
  std::size_t ranks() const {
    return static_cast<std::size_t>(
        std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0));
  }
};

Shape AnyShape() {
  return {GENERATE(values<std::vector<int>>(
      {{2, 2}, {4, 4}, {2, 2, 2}, {3, 1}, {1, 3}, {5, 3}, {2, 2, 2, 2}, {1, 1, 1}, {4}}))};
}

// The least for hosts that each have K bytes and need the K of the sum.
TEST_CASE("in an allreduce 2 K (M-1) / M bytes leave each host, however many ranks it has") {
  const Shape shape = AnyShape();
  INFO(Catch::Detail::stringify(shape.ranks_per_host));
  Backends backends = Connect(shape.ranks_per_host);
  const int ranks = static_cast<int>(shape.ranks());
  const auto allreduce = [ranks](std::size_t count) {
    return [=](Backend& backend, int) {
      std::vector<float> values(count, 1.0F);
      const ReducePiece piece{values.data(), values.data(), static_cast<std::int64_t>(count)};
      const Status status = backend.Allreduce({&piece, 1}, {.rank_count = ranks});
      const bool right =
          std::ranges::count(values, static_cast<float>(ranks)) == std::ssize(values);
      return status.ok() && !right ? Status(StatusCode::kInternal, "not the sum") : status;
    };
  };
  for (const std::size_t count : {1U, 7U, 100U, 1001U, 100'003U}) {
    INFO(count << " elements");
    const auto sent = BytesSent(backends, shape.ranks_per_host, allreduce(count));
    CHECK(Total(sent) == 2 * (shape.hosts() - 1) * 4 * count);
  }
  // Divisible by everything, so that no host sends a byte more than another.
  constexpr std::size_t kCount = std::size_t{16} * 12 * 5 * 64;
  const auto sent = BytesSent(backends, shape.ranks_per_host, allreduce(kCount));
  for (const std::uint64_t bytes : sent) {
    CHECK(bytes == 2 * kCount * 4 * (shape.hosts() - 1) / shape.hosts());
  }
}

TEST_CASE("every byte of a broadcast enters each other host once, whoever is the root") {
  const Shape shape = AnyShape();
  INFO(Catch::Detail::stringify(shape.ranks_per_host));
  Backends backends = Connect(shape.ranks_per_host);
  for (std::size_t root = 0; root < shape.ranks(); ++root) {
    for (const std::size_t count : {5U, 100'003U}) {
      const auto sent = BytesSent(backends, shape.ranks_per_host, [&](Backend& backend, int) {
        std::vector<std::byte> bytes(count);
        const BroadcastPiece piece{bytes.data(), bytes.data(), count};
        return backend.Broadcast({&piece, 1}, static_cast<int>(root));
      });
      CHECK(Total(sent) == (shape.hosts() - 1) * count);
    }
  }
}

TEST_CASE("every contribution to an allgather enters each other host once") {
  const Shape shape = AnyShape();
  INFO(Catch::Detail::stringify(shape.ranks_per_host));
  Backends backends = Connect(shape.ranks_per_host);
  for (const std::size_t unit : {1U, 5003U}) {
    std::vector<std::size_t> rank_bytes(shape.ranks());
    for (std::size_t rank = 0; rank < rank_bytes.size(); ++rank) rank_bytes[rank] = rank * unit;
    const std::size_t bytes = std::accumulate(rank_bytes.begin(), rank_bytes.end(), std::size_t{0});
    const auto sent = BytesSent(backends, shape.ranks_per_host, [&](Backend& backend, int rank) {
      const std::vector<std::byte> input(rank_bytes[static_cast<std::size_t>(rank)]);
      std::vector<std::byte> output(bytes);
      const GatherPiece piece{input.data(), output.data(), rank_bytes};
      return backend.Allgather({&piece, 1});
    });
    CHECK(Total(sent) == (shape.hosts() - 1) * bytes);
  }
}

TEST_CASE("in a reducescatter K (M-1) bytes move between the hosts") {
  const Shape shape = AnyShape();
  INFO(Catch::Detail::stringify(shape.ranks_per_host));
  Backends backends = Connect(shape.ranks_per_host);
  for (const std::int64_t each : {1, 5003}) {
    const std::vector<std::int64_t> rank_elements(shape.ranks(), each);
    const std::size_t elements = shape.ranks() * static_cast<std::size_t>(each);
    const auto sent = BytesSent(backends, shape.ranks_per_host, [&](Backend& backend, int) {
      const std::vector<float> input(elements);
      std::vector<float> output(static_cast<std::size_t>(each));
      const ScatterPiece piece{input.data(), output.data(), rank_elements};
      return backend.Reducescatter({&piece, 1}, {.rank_count = static_cast<int>(shape.ranks())});
    });
    CHECK(Total(sent) == (shape.hosts() - 1) * elements * 4);
  }
}

// They travel in a type that holds every sum: an allreduce of twice the bytes.
TEST_CASE("averages of integers cross the network once per host, in twice their size") {
  const Shape shape = AnyShape();
  INFO(Catch::Detail::stringify(shape.ranks_per_host));
  if (shape.hosts() == shape.ranks() || shape.hosts() == 1) return;  // no two levels
  Backends backends = Connect(shape.ranks_per_host);
  const int ranks = static_cast<int>(shape.ranks());
  const auto average = [ranks]<typename T>(DType dtype, T value, std::size_t count) {
    return [=](Backend& backend, int rank) {
      // The sum is two off that of equal numbers, and the quotient goes towards zero.
      const int step = value < 0 ? 1 : -1;
      std::vector<T> values(count, rank == 0 ? static_cast<T>(value + 2 * step) : value);
      const ReducePiece piece{values.data(), values.data(), static_cast<std::int64_t>(count)};
      const Status status = backend.Allreduce(
          {&piece, 1}, {.dtype = dtype, .op = ReduceOp::kAverage, .rank_count = ranks});
      const T expected = static_cast<T>(value + step);
      const bool right = std::ranges::count(values, expected) == std::ssize(values);
      return status.ok() && !right ? Status(StatusCode::kInternal, "not the average") : status;
    };
  };
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::size_t count : {1U, 1001U, 100'003U}) {
    INFO(count << " elements");
    const auto total = [&](const Operation& operation) {
      return Total(BytesSent(backends, shape.ranks_per_host, operation));
    };
    const std::size_t twice = 4 * (shape.hosts() - 1) * count;
    CHECK(total(average(DType::kUint8, std::uint8_t{255}, count)) == twice);
    CHECK(total(average(DType::kInt16, std::int16_t{-32768}, count)) == twice * 2);
    CHECK(total(average(DType::kInt32, std::int32_t{2147483647}, count)) == twice * 4);
    CHECK(total(average(DType::kInt64, kLeast, count)) == twice * 8);
    CHECK(total(average(DType::kInt64, kMost, count)) == twice * 8);
  }
}

TEST_CASE("a large reducescatter goes in turns, and sends no more for that") {
  const Shape shape = AnyShape();
  INFO(Catch::Detail::stringify(shape.ranks_per_host));
  Backends backends = Connect(shape.ranks_per_host);
  const std::size_t ranks = shape.ranks();
  // Much more than the 100,000 bytes of memory that a turn may need.
  std::vector<std::int64_t> rank_elements(ranks, 60'007);
  rank_elements.back() = 100'003;
  rank_elements.front() = 0;
  const std::int64_t elements =
      std::accumulate(rank_elements.begin(), rank_elements.end(), std::int64_t{0});
  const auto sent = BytesSent(backends, shape.ranks_per_host, [&](Backend& backend, int rank) {
    std::vector<std::int32_t> input(static_cast<std::size_t>(elements));
    std::iota(input.begin(), input.end(), rank);
    const auto own = rank_elements.begin() + rank;
    std::vector<std::int32_t> output(static_cast<std::size_t>(*own));
    const std::array<ScatterPiece, 1> piece = {{{input.data(), output.data(), rank_elements}}};
    Status status = backend.Reducescatter(
        piece,
        {.dtype = DType::kInt32, .op = ReduceOp::kSum, .rank_count = static_cast<int>(ranks)});
    const auto size = static_cast<std::int32_t>(ranks);
    auto place =
        static_cast<std::int32_t>(std::accumulate(rank_elements.begin(), own, std::int64_t{0}));
    for (const std::int32_t sum : output) {
      if (sum != size * place++ + size * (size - 1) / 2)
        return Status(StatusCode::kInternal, "not the sum");
    }
    return status;
  });
  CHECK(Total(sent) == (shape.hosts() - 1) * static_cast<std::size_t>(elements) * 4);
}

// As the process set of a pair, which is what send and recv use.
TEST_CASE("what one rank sends to another uses the network only between hosts, and only once") {
  const std::vector<int> ranks_per_host = {2, 3};
  const std::size_t bytes = GENERATE(1U, 300'007U);
  const auto pair = GENERATE(values<std::vector<int>>({{0, 1}, {1, 2}, {0, 4}, {3, 4}}));
  const int root = GENERATE(0, 1);
  INFO(pair[0] << " and " << pair[1] << ", " << root << " sends " << bytes);
  Backends backends = Connect(ranks_per_host);
  const auto right = RunRanks(2, [&](int place) {
    Backend& own = *backends[static_cast<std::size_t>(pair[static_cast<std::size_t>(place)])];
    const auto part = own.Split(pair);
    if (!part.ok()) return false;
    std::vector<std::byte> data(bytes, place == root ? std::byte{7} : std::byte{1});
    const BroadcastPiece piece{data.data(), data.data(), bytes};
    return (*part)->Broadcast({&piece, 1}, root).ok() &&
           std::ranges::count(data, std::byte{7}) == std::ssize(data);
  });
  CHECK(right == std::vector<bool>{true, true});
  const bool crosses = (pair[0] < 2) != (pair[1] < 2);
  for (int rank = 0; rank < 5; ++rank) {
    const TcpTraffic traffic = backends[static_cast<std::size_t>(rank)]->traffic();
    const bool sends = crosses && rank == pair[static_cast<std::size_t>(root)];
    const bool takes_part = crosses && (rank == pair[0] || rank == pair[1]);
    CHECK(traffic.payload_bytes_sent == (sends ? bytes : 0));
    CHECK(traffic.connections == (takes_part ? 1 : 0));
  }
}

TEST_CASE("in an alltoall what stays in a host uses no socket") {
  const Shape shape = AnyShape();
  INFO(Catch::Detail::stringify(shape.ranks_per_host));
  Backends backends = Connect(shape.ranks_per_host);
  constexpr std::size_t kEach = 5003;
  const std::size_t ranks = shape.ranks();
  const std::vector<std::size_t> bytes(ranks * ranks, kEach);
  const auto sent = BytesSent(backends, shape.ranks_per_host, [&](Backend& backend, int) {
    const std::vector<std::byte> input(ranks * kEach);
    std::vector<std::byte> output(ranks * kEach);
    const ExchangePiece piece{input.data(), output.data(), bytes};
    return backend.Alltoall({&piece, 1});
  });
  for (std::size_t host = 0; host < shape.hosts(); ++host) {
    const auto here = static_cast<std::size_t>(shape.ranks_per_host[host]);
    CHECK(sent[host] == here * (ranks - here) * kEach);
  }
}

TEST_CASE("ranks of a second host that run different operations are named as ranks of the world") {
  Backends backends = Connect({2, 2});
  const auto statuses = RunRanks(2, [&](int index) {
    Backend& backend = *backends[static_cast<std::size_t>(index) + 2];
    if (index == 0) return backend.Barrier();
    std::vector<float> values(1000);
    const ReducePiece piece{values.data(), values.data(), std::ssize(values)};
    return backend.Allreduce({&piece, 1}, {.rank_count = 4});
  });
  CHECK(statuses[0].code() == StatusCode::kInternal);
  CHECK(statuses[0].culprit_rank() == 3);
  CHECK_THAT(statuses[0].message(), Catch::Contains("ranks 2 and 3"));
  CHECK(statuses[1].culprit_rank() == 2);
}

// The engine hears of a loss from the control plane or from the data plane, and aborts.
TEST_CASE("a rank that is gone in the middle is named by who was to hear from it, on both levels") {
  const std::vector<int> ranks_per_host = {2, 2};
  const int gone = GENERATE(0, 1, 2, 3);
  INFO("rank " << gone);
  Backends backends = Connect(ranks_per_host);
  const auto allreduce = [](Backend& backend) {
    std::vector<float> values(100'000, 1.0F);
    const ReducePiece piece{values.data(), values.data(), std::ssize(values)};
    return backend.Allreduce({&piece, 1}, {.rank_count = 4});
  };
  const auto statuses = RunRanks(4, [&](int rank) {
    auto& own = backends[static_cast<std::size_t>(rank)];
    Status status = allreduce(*own);  // opens the connections
    if (rank == gone) {
      own.reset();
      return status;
    }
    while (status.ok()) status = allreduce(*own);
    for (std::size_t other = 0; other < backends.size(); ++other) {
      if (static_cast<int>(other) != gone) backends[other]->Abort(status);
    }
    return status;
  });
  for (int rank = 0; rank < 4; ++rank) {
    const Status& status = statuses[static_cast<std::size_t>(rank)];
    INFO("rank " << rank << ": " << status.ToString());
    CHECK(status.culprit_rank() == (rank == gone ? Status::kNoRank : gone));
  }
}

}  // namespace
}  // namespace hvl::collective
