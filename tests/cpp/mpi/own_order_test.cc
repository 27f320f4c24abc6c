// With HVL_REPRODUCIBLE=0 MPI_Allreduce adds in an order of its own: integers, minima and maxima
// are the oracle's to the bit, sums of floating-point numbers to rounding.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "tests/cpp/mpi/team.h"
#include "tests/support/reference_reduce.h"

namespace hvl::mpi::test {
namespace {

using Bytes = std::vector<std::byte>;
using collective::contract::MakeAllreduce;
using collective::contract::Placement;

plugin::MpiOptions OwnOrder() {
  plugin::MpiOptions options;
  options.reproducible = false;
  options.call_bytes = 10000;  // several calls
  return options;
}

TEST_CASE("in MPI's order, integers are still exact, whatever is done with them") {
  Team team(OwnOrder());
  for (const DType dtype :
       {DType::kUint8, DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64, DType::kBool}) {
    for (const ReduceOp op :
         {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const tensor::ReduceSpec spec{.dtype = dtype, .op = op, .rank_count = team.size()};
      if (!tensor::CheckElementwise(spec).ok()) continue;
      team.RunAndCheck(MakeAllreduce(team.world(), spec, {1}, Placement::kOwn, team.random()));
      team.RunAndCheck(
          MakeAllreduce(team.world(), spec, {10007, 0, 5}, Placement::kOwn, team.random()));
    }
  }
}

TEST_CASE("in MPI's order, minima and maxima are exact and propagate NaN") {
  Team team(OwnOrder());
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      const tensor::ReduceSpec spec{.dtype = dtype, .op = op, .rank_count = team.size()};
      team.RunAndCheck(MakeAllreduce(team.world(), spec, {10007}, Placement::kOwn, team.random()));
    }
  }
}

// The distance of two neighbours at 1.
double Epsilon(DType dtype) {
  if (dtype == DType::kFloat64) return 0x1p-52;
  if (dtype == DType::kFloat32) return 0x1p-23;
  return dtype == DType::kFloat16 ? 0x1p-10 : 0x1p-7;
}

// Numbers from -1 to 1 of the type.
Bytes SmallNumbers(DType dtype, std::size_t count, std::mt19937_64& random) {
  std::uniform_real_distribution<double> distribution(-1.0, 1.0);
  Bytes bytes(count * DTypeBytes(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const double value = distribution(random);
    const auto narrow = static_cast<float>(value);
    std::byte* const place = bytes.data() + i * DTypeBytes(dtype);
    if (dtype == DType::kFloat64) {
      std::memcpy(place, &value, sizeof value);
    } else if (dtype == DType::kFloat32) {
      std::memcpy(place, &narrow, sizeof narrow);
    } else {
      tensor::Narrow(dtype, &narrow, place, 1);
    }
  }
  return bytes;
}

double At(DType dtype, const Bytes& bytes, std::size_t i) {
  const std::byte* const place = bytes.data() + i * DTypeBytes(dtype);
  if (dtype == DType::kFloat64) {
    double value = 0;
    std::memcpy(&value, place, sizeof value);
    return value;
  }
  float value = 0;
  tensor::Widen(dtype, place, &value, 1);
  return value;
}

// Each of the N-1 additions, and the division, may be wrong by half a unit of what was added up.
TEST_CASE("in MPI's order, sums and averages differ from rank order by rounding only") {
  Team team(OwnOrder());
  constexpr std::size_t kCount = 10007;
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      for (const double postscale : {1.0, 0.5}) {
        const tensor::ReduceSpec spec{
            .dtype = dtype, .op = op, .postscale = postscale, .rank_count = team.size()};
        std::vector<Bytes> inputs;
        std::vector<const void*> pointers;
        for (int rank = 0; rank < team.size(); ++rank) {
          inputs.push_back(SmallNumbers(dtype, kCount, team.random()));
        }
        for (const Bytes& input : inputs) pointers.push_back(input.data());
        Bytes expected(inputs[0].size());
        hvl::test::ReferenceReduce(spec, pointers, expected.data(), kCount);
        Bytes output = inputs[static_cast<std::size_t>(team.rank())];
        const collective::ReducePiece piece{output.data(), output.data(), kCount};
        REQUIRE(team.backend().Allreduce({&piece, 1}, spec).ok());
        const double bound = team.size() * team.size() * Epsilon(dtype);
        double worst = 0;
        for (std::size_t i = 0; i < kCount; ++i) {
          worst = std::max(worst, std::abs(At(dtype, output, i) - At(dtype, expected, i)));
        }
        INFO(DTypeName(dtype) << " " << ReduceOpName(op) << " " << postscale << ": " << worst);
        CHECK(worst <= bound);
      }
    }
  }
}

}  // namespace
}  // namespace hvl::mpi::test
