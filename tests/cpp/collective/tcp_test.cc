// What only the tcp data plane has: bytes on the wire, the ring, disagreeing and dying peers. That
// its results are right for every type and size is the contract suite's business.
#include "csrc/collective/tcp.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/collective/tcp_transfer.h"
#include "tests/support/huge_parts.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::collective {
namespace {

using test::RunRanks;
using Backends = std::vector<std::unique_ptr<TcpBackend>>;
using Floats = std::vector<float>;

Backends Connect(int size, const TcpOptions& options) {
  auto meshes = test::JoinRanks(size);
  REQUIRE(meshes.ok());
  auto created = RunRanks(size, [&](int rank) {
    return CreateTcpBackend(*(*meshes)[static_cast<std::size_t>(rank)], options);
  });
  Backends backends;
  for (auto& backend : created) {
    REQUIRE(backend.ok());
    backends.push_back(std::move(backend).value());
  }
  return backends;
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

// Never the exchange of everything, and many chunks also of small vectors.
TcpOptions SmallChunks(bool reproducible) {
  TcpOptions options;
  options.reproducible = reproducible;
  options.small_bytes = 0;
  options.chunk_bytes = 256;
  return options;
}

}  // namespace

TEST_CASE("an allreduce sends twice (N-1) K bytes in total, whatever N and K", "[tcp]") {
  const int size = GENERATE(2, 3, 4, 8);
  const bool reproducible = GENERATE(true, false);
  Backends backends = Connect(size, SmallChunks(reproducible));
  std::uint64_t before = 0;
  for (const std::size_t count : {1U, 2U, 3U, 7U, 64U, 1001U, 100'000U}) {
    INFO(size << " ranks, " << count << " elements");
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
  Backends backends = Connect(kSize, SmallChunks(true));
  AllreduceInPlace(backends, 40'000, Spec(kSize));
  for (const auto& backend : backends)
    CHECK(backend->traffic().payload_bytes_sent == std::uint64_t{2} * 3 * 40'000);
}

TEST_CASE("sums in rank order are bitwise those of one reduction, whatever the chunks", "[tcp]") {
  const int size = GENERATE(1, 2, 3, 4, 8);
  const std::size_t count = GENERATE(1U, 63U, 5000U, 100'003U);
  TcpOptions options;
  options.small_bytes = GENERATE(std::size_t{0}, std::size_t{1} << 20);
  options.chunk_bytes = GENERATE(std::size_t{64}, std::size_t{65536});
  Backends backends = Connect(size, options);
  const tensor::ReduceSpec spec = Spec(size, ReduceOp::kAverage);
  const Floats expected = Expected(size, count, spec);
  for (const Floats& result : AllreduceInPlace(backends, count, spec)) CHECK(result == expected);
}

TEST_CASE("the ring gives the same sum up to rounding", "[tcp]") {
  const int size = GENERATE(2, 3, 5);
  const std::size_t count = GENERATE(3U, 100'003U);
  tensor::ReduceSpec spec = Spec(size, GENERATE(ReduceOp::kSum, ReduceOp::kAverage));
  spec.postscale = 0.5;
  Backends backends = Connect(size, SmallChunks(false));
  const Floats expected = Expected(size, count, spec);
  for (const Floats& result : AllreduceInPlace(backends, count, spec)) {
    REQUIRE(result.size() == count);
    // At most `size` roundings of numbers below size * 1e3, each by 2^-24 of it.
    const float tolerance = static_cast<float>(size * size) * 1e3F / 16777216.0F;
    for (std::size_t i = 0; i < count; ++i)
      if (std::abs(result[i] - expected[i]) > tolerance) FAIL(i << ": " << result[i]);
  }
}

TEST_CASE("where partial sums would lose something, the ring gives way to rank order", "[tcp]") {
  constexpr int kSize = 3;
  Backends backends = Connect(kSize, SmallChunks(false));
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
  const bool reproducible = GENERATE(true, false);
  Backends backends = Connect(kSize, SmallChunks(reproducible));
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
  Backends backends = Connect(size, options);
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
  Backends backends = Connect(2, TcpOptions());
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

TEST_CASE("a peer that goes away ends the operation with its rank", "[tcp]") {
  Backends backends = Connect(3, TcpOptions());
  backends[2].reset();
  const auto statuses = RunRanks(2, [&](int rank) {
    Floats values(1'000'000);
    const ReducePiece piece{values.data(), values.data(), 1'000'000};
    const Status status = backends[static_cast<std::size_t>(rank)]->Allreduce({&piece, 1}, Spec(3));
    return status;
  });
  for (const Status& status : statuses) {
    CHECK(status.code() == StatusCode::kUnavailable);
    CHECK(status.culprit_rank() == 2);
    CHECK_THAT(status.message(), Catch::Contains("lost rank 2 during allreduce"));
  }
}

TEST_CASE("a lost peer ends a process set and everything that shares its links", "[tcp]") {
  Backends backends = Connect(3, TcpOptions());
  const std::vector<int> with_dead = {1, 2};
  const std::vector<int> without = {0, 1};
  const auto part = backends[1]->Split(with_dead);
  const auto other = backends[1]->Split(without);
  REQUIRE((part.ok() && other.ok()));
  backends[2].reset();
  const Status status = (*part)->Barrier();
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(status.culprit_rank() == 2);
  CHECK_THAT(status.message(), Catch::Contains("lost rank 2 during barrier"));
  CHECK((*other)->Barrier() == status);
  CHECK(backends[1]->Barrier() == status);
}

TEST_CASE("ranks that work in different process sets both hear of it", "[tcp]") {
  Backends backends = Connect(3, TcpOptions());
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
  Backends backends = Connect(2, TcpOptions());
  const auto wrong = RunRanks(2, [&](int rank) {
    return test::ExchangeHugeParts(*backends[static_cast<std::size_t>(rank)], rank);
  });
  for (const std::string& complaint : wrong) CHECK(complaint.empty());
}
#endif

TEST_CASE("abort ends an operation that waits, and all later ones, with the first cause", "[tcp]") {
  Backends backends = Connect(2, TcpOptions());
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
