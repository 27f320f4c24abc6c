// Adasum against the paper's definition, applied to whole vectors by recursion.
#include "csrc/collective/adasum.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/reference_backend.h"

namespace hvl::collective {
namespace {

using Vector = std::vector<double>;
using Bytes = std::vector<std::byte>;

// Values that the type holds exactly.
Bytes Encode(DType dtype, const Vector& values) {
  Bytes bytes(values.size() * DTypeBytes(dtype));
  if (values.empty()) return bytes;
  if (dtype == DType::kFloat64) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  const std::vector<float> floats(values.begin(), values.end());
  tensor::Narrow(dtype, floats.data(), bytes.data(), std::ssize(floats));
  return bytes;
}

Vector Decode(DType dtype, const Bytes& bytes) {
  Vector values(bytes.size() / DTypeBytes(dtype));
  if (values.empty()) return values;
  if (dtype == DType::kFloat64) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> floats(values.size());
  tensor::Widen(dtype, bytes.data(), floats.data(), std::ssize(floats));
  std::ranges::copy(floats, values.begin());
  return values;
}

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector Pair(const Vector& a, const Vector& b) {
  const double of_a = Dot(a, a) == 0 ? 1 : 1 - Dot(a, b) / (2 * Dot(a, a));
  const double of_b = Dot(b, b) == 0 ? 1 : 1 - Dot(a, b) / (2 * Dot(b, b));
  Vector sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = of_a * a[i] + of_b * b[i];
  return sum;
}

// Of ranks [begin, begin + width), as far as there are so many; `width` is a power of two.
Vector Tree(const std::vector<Vector>& ranks, std::size_t begin, std::size_t width) {
  if (width == 1) return ranks[begin];
  Vector left = Tree(ranks, begin, width / 2);
  if (begin + width / 2 >= ranks.size()) return left;
  return Pair(left, Tree(ranks, begin + width / 2, width / 2));
}

Vector Expected(const std::vector<Vector>& ranks) { return Tree(ranks, 0, 8); }

// Related vectors, as gradients are: a common part and one of each rank's own.
std::vector<Vector> Gradients(int ranks, std::size_t count, DType dtype, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  Vector common(count);
  for (double& value : common) value = normal(random);
  std::vector<Vector> gradients;
  for (int rank = 0; rank < ranks; ++rank) {
    Vector gradient = common;
    for (double& value : gradient) value = (value + normal(random)) * (1 + rank);
    gradients.push_back(Decode(dtype, Encode(dtype, gradient)));
  }
  return gradients;
}

struct Factors {
  double prescale = 1.0;
  double postscale = 1.0;
};

// `tensors`, by tensor, then rank. Returns the results in the same order.
std::vector<std::vector<Bytes>> Run(DType dtype, const std::vector<std::vector<Vector>>& tensors,
                                    bool in_place, Factors factors = {}) {
  const int ranks = static_cast<int>(tensors[0].size());
  const auto world = test::MakeReferenceWorld(ranks);
  std::vector<std::vector<Bytes>> results(tensors.size(), std::vector<Bytes>(tensors[0].size()));
  const auto statuses = test::RunRanks(ranks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::vector<Bytes> inputs;
    std::vector<ReducePiece> pieces;
    for (std::size_t index = 0; index < tensors.size(); ++index) {
      inputs.push_back(Encode(dtype, tensors[index][r]));
      results[index][r] = in_place ? inputs.back() : Bytes(inputs.back().size(), std::byte{0xcc});
      pieces.push_back({in_place ? results[index][r].data() : inputs.back().data(),
                        results[index][r].data(), std::ssize(tensors[index][r])});
    }
    const std::vector<Bytes> before = inputs;
    Status status =
        AdasumAllreduce(*world[r], rank, ranks, pieces, dtype, factors.prescale, factors.postscale);
    if (status.ok() && inputs != before) return Status(StatusCode::kInternal, "input changed");
    return status;
  });
  for (const Status& status : statuses) {
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
  return results;
}

// Half a unit of the last place, relative to 1, and what computing in float32 adds.
double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 0x1p-11 + 1e-6;
    case DType::kBfloat16:
      return 0x1p-8 + 1e-6;
    case DType::kFloat32:
      return 1e-6;
    default:
      return 1e-14;
  }
}

double Largest(const Vector& vector) {
  double largest = 0;
  for (const double value : vector) largest = std::max(largest, std::abs(value));
  return largest;
}

// Rounding errors are those of the inputs: where these cancel out, the result is smaller.
void CheckNear(const Vector& result, const Vector& expected, double tolerance,
               const std::vector<Vector>& inputs = {}) {
  REQUIRE(result.size() == expected.size());
  double largest = Largest(expected);
  for (const Vector& input : inputs) largest = std::max(largest, Largest(input));
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(result[i] - expected[i]));
  }
  CHECK(worst <= tolerance * largest);
}

TEST_CASE("Adasum is the paper's tree for any number of ranks, type and size") {
  const int ranks = GENERATE(range(1, 9));
  const DType dtype = GENERATE(DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << ranks << " ranks, " << DTypeName(dtype));
  const bool in_place = random() % 2 == 0;
  std::vector<std::vector<Vector>> tensors;
  for (const std::size_t count : {0U, 1U, 5U, 64U, 1003U}) {
    tensors.push_back(Gradients(ranks, count, dtype, random));
  }
  const auto fused = Run(dtype, tensors, in_place);
  for (std::size_t index = 0; index < tensors.size(); ++index) {
    INFO("tensor " << index);
    CheckNear(Decode(dtype, fused[index][0]), Expected(tensors[index]), Tolerance(dtype),
              tensors[index]);
    for (const Bytes& result : fused[index]) CHECK(result == fused[index][0]);
    // Alone it is the same to the bit.
    CHECK(Run(dtype, {tensors[index]}, in_place)[0] == fused[index]);
  }
}

TEST_CASE("Adasum adds orthogonal vectors and averages equal ones") {
  const auto result =
      Run(DType::kFloat64, {{{3, 0, 0, 0}, {0, -2, 0, 0}, {0, 0, 5, 0}}, {{1, 2}, {1, 2}, {1, 2}}},
          false);
  CHECK(Decode(DType::kFloat64, result[0][2]) == Vector{3, -2, 5, 0});
  CHECK(Decode(DType::kFloat64, result[1][0]) == Vector{1, 2});
}

TEST_CASE("Adasum adds a vector of zeros, or of less than any norm, without a change") {
  const auto result =
      Run(DType::kFloat64,
          {{{0, 0}, {3, 4}}, {{3, 4}, {0, 0}}, {{0, 0}, {0, 0}}, {{1e-200, 0}, {3, 4}}}, false);
  CHECK(Decode(DType::kFloat64, result[0][0]) == Vector{3, 4});
  CHECK(Decode(DType::kFloat64, result[1][1]) == Vector{3, 4});
  CHECK(Decode(DType::kFloat64, result[2][0]) == Vector{0, 0});
  CHECK(Decode(DType::kFloat64, result[3][0])[1] == 4);
}

TEST_CASE("Adasum scales inputs before and results after") {
  const std::vector<Vector> gradients = {{1, 2, 3}, {2, 0, -1}, {1, 1, 1}};
  const auto plain = Run(DType::kFloat32, {gradients}, false);
  const auto scaled = Run(DType::kFloat32, {gradients}, false, {.prescale = 4, .postscale = 0.125});
  // Linear in a common factor.
  Vector expected = Decode(DType::kFloat32, plain[0][0]);
  for (double& value : expected) value /= 2;
  CheckNear(Decode(DType::kFloat32, scaled[0][1]), expected, 1e-6);
}

TEST_CASE("a NaN in one tensor stays there") {
  const auto result = Run(DType::kFloat32, {{{NAN, 1}, {1, 1}}, {{1, 0}, {0, 1}}}, true);
  CHECK(std::isnan(Decode(DType::kFloat32, result[0][1])[0]));
  CHECK(Decode(DType::kFloat32, result[1][0]) == Vector{1, 1});
}

TEST_CASE("Adasum of integers is refused with the cure, before any rank waits") {
  const auto world = test::MakeReferenceWorld(2);
  std::int32_t value = 3;
  const ReducePiece piece{&value, &value, 1};
  const Status status = AdasumAllreduce(*world[0], 0, 2, {&piece, 1}, DType::kInt32, 1.0, 1.0);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(status.message(), Catch::Contains("int32") && Catch::Contains("float32"));
}

}  // namespace
}  // namespace hvl::collective
