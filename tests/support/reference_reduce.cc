#include "tests/support/reference_reduce.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "csrc/base/check.h"

namespace hvl::test {
namespace {

using tensor::ReduceSpec;
__extension__ using Int128 = __int128;

template <typename T>
T Get(const void* from, std::int64_t index) {
  T value;
  std::memcpy(&value,
              static_cast<const std::byte*>(from) + static_cast<std::size_t>(index) * sizeof(T),
              sizeof(T));
  return value;
}

template <typename T>
void Put(void* to, std::int64_t index, T value) {
  std::memcpy(static_cast<std::byte*>(to) + static_cast<std::size_t>(index) * sizeof(T), &value,
              sizeof(T));
}

// A 16-bit floating-point format, described by the widths of its fields.
struct SmallFloat {
  int exponent_bits;
  int fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  unsigned top_exponent() const { return (1U << exponent_bits) - 1; }

  double Decode(std::uint16_t bits) const {
    const unsigned fraction = bits & ((1U << fraction_bits) - 1);
    const unsigned exponent = (bits >> fraction_bits) & top_exponent();
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == top_exponent()) {
      return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                           : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias() - fraction_bits);
    return sign * std::ldexp(fraction + (1U << fraction_bits),
                             static_cast<int>(exponent) - bias() - fraction_bits);
  }

  std::uint16_t Encode(double value) const {
    const unsigned infinity = top_exponent() << fraction_bits;
    if (std::isnan(value))
      return static_cast<std::uint16_t>(infinity | (1U << (fraction_bits - 1)));
    const unsigned sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
    // The unit of the last place at this magnitude; below the normal range it stays the same.
    const int exponent = magnitude == 0 ? 1 - bias() : std::max(std::ilogb(magnitude), 1 - bias());
    // Ties to even (the default rounding mode). A fraction that overflows its field carries into
    // the exponent, which is the right neighbour, and in the end infinity.
    const auto units =
        static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent)));
    const unsigned bits = (static_cast<unsigned>(exponent + bias() - 1) << fraction_bits) + units;
    return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
  }
};
constexpr SmallFloat kHalf{.exponent_bits = 5, .fraction_bits = 10};
constexpr SmallFloat kBrain{.exponent_bits = 8, .fraction_bits = 7};

template <typename Accumulator>
double Rounded(double value) {
  return static_cast<double>(static_cast<Accumulator>(value));
}

double CombineFloats(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return a + b;
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
      return b < a ? b : a;
    case ReduceOp::kMax:
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
      return b > a ? b : a;
    case ReduceOp::kAdasum:
      break;
  }
  HVL_CHECK(false, "no such reduction");
  return 0;
}

// Double has more than twice the bits of float32, so rounding a double result of + * / to float32
// is the float32 result.
template <typename Accumulator>
double ReduceFloats(const ReduceSpec& spec, std::span<const double> values) {
  const double prescale = Rounded<Accumulator>(spec.prescale);
  double sum = Rounded<Accumulator>(values[0] * prescale);
  for (const double value : values.subspan(1)) {
    sum = Rounded<Accumulator>(CombineFloats(spec.op, sum, Rounded<Accumulator>(value * prescale)));
  }
  if (spec.op == ReduceOp::kAverage) sum = Rounded<Accumulator>(sum / spec.rank_count);
  sum = Rounded<Accumulator>(sum * Rounded<Accumulator>(spec.postscale));
  return std::isnan(sum) ? std::numeric_limits<double>::quiet_NaN() : sum;
}

template <typename T>
T Scale(T value, double factor) {
  if (factor == 1.0) return value;
  const double scaled = std::trunc(static_cast<double>(value) * factor);
  if (std::isnan(scaled)) return 0;
  const double limit = std::ldexp(1.0, std::numeric_limits<T>::digits);  // highest value + 1
  if (scaled >= limit) return std::numeric_limits<T>::max();
  if (scaled <= (std::is_signed_v<T> ? -limit : 0.0)) return std::numeric_limits<T>::min();
  return static_cast<T>(scaled);
}

// Keeps the low bits, as fixed-width arithmetic does.
template <typename T>
T Wrap(Int128 value) {
  return static_cast<T>(static_cast<std::make_unsigned_t<T>>(value));
}

template <typename T>
T ReduceIntegers(const ReduceSpec& spec, std::span<const T> values) {
  Int128 exact_sum = 0;
  T result = Scale(values[0], spec.prescale);
  for (std::size_t r = 0; r < values.size(); ++r) {
    const T value = Scale(values[r], spec.prescale);
    exact_sum += value;
    if (r == 0) continue;
    if (spec.op == ReduceOp::kSum) result = Wrap<T>(Int128{result} + value);
    if (spec.op == ReduceOp::kProduct) result = Wrap<T>(Int128{result} * value);
    if (spec.op == ReduceOp::kMin) result = std::min(result, value);
    if (spec.op == ReduceOp::kMax) result = std::max(result, value);
  }
  if (spec.op == ReduceOp::kAverage) {
    // The remainder of a quotient that is rounded towards zero has the sign of the sum.
    const Int128 magnitude = exact_sum < 0 ? -exact_sum : exact_sum;
    const Int128 quotient = (magnitude - magnitude % spec.rank_count) / spec.rank_count;
    result = static_cast<T>(exact_sum < 0 ? -quotient : quotient);
  }
  return Scale(result, spec.postscale);
}

template <typename T>
void ForEachInteger(const ReduceSpec& spec, std::span<const void* const> inputs, void* output,
                    std::int64_t count) {
  std::vector<T> values(inputs.size());
  for (std::int64_t index = 0; index < count; ++index) {
    for (std::size_t r = 0; r < inputs.size(); ++r) values[r] = Get<T>(inputs[r], index);
    Put(output, index, ReduceIntegers<T>(spec, values));
  }
}

template <typename Accumulator, typename Storage, typename Decode, typename Encode>
void ForEachFloat(const ReduceSpec& spec, std::span<const void* const> inputs, void* output,
                  std::int64_t count, Decode decode, Encode encode) {
  std::vector<double> values(inputs.size());
  for (std::int64_t index = 0; index < count; ++index) {
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      values[r] = decode(Get<Storage>(inputs[r], index));
    }
    Put<Storage>(output, index, encode(ReduceFloats<Accumulator>(spec, values)));
  }
}

template <typename T>
void ForEachStandardFloat(const ReduceSpec& spec, std::span<const void* const> inputs, void* output,
                          std::int64_t count) {
  ForEachFloat<T, T>(
      spec, inputs, output, count, [](T value) { return static_cast<double>(value); },
      [](double value) { return static_cast<T>(value); });
}

void ForEachSmallFloat(const SmallFloat& format, const ReduceSpec& spec,
                       std::span<const void* const> inputs, void* output, std::int64_t count) {
  ForEachFloat<float, std::uint16_t>(
      spec, inputs, output, count, [&format](std::uint16_t bits) { return format.Decode(bits); },
      [&format](double value) { return format.Encode(value); });
}

void ForEachBool(const ReduceSpec& spec, std::span<const void* const> inputs, void* output,
                 std::int64_t count) {
  for (std::int64_t index = 0; index < count; ++index) {
    std::size_t true_count = 0;
    for (const void* input : inputs) true_count += Get<std::uint8_t>(input, index) != 0 ? 1U : 0U;
    const bool any = spec.op == ReduceOp::kMax;
    Put<std::uint8_t>(output, index, any ? true_count > 0 : true_count == inputs.size());
  }
}

constexpr std::array<DType, 10> kDTypes = {
#define HVL_X(enumerator, value, name, bytes) DType::enumerator,
    HVL_DTYPES(HVL_X)
#undef HVL_X
};

// Uniform in [-8, 8), or any bit pattern.
template <typename T>
T RandomFloat(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  if (bits % 4 == 0) {
    if constexpr (sizeof(T) == 8) return std::bit_cast<double>(random());
    if constexpr (sizeof(T) == 4)
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits >> 32));
  }
  return static_cast<T>(static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-60);
}

std::uint16_t RandomSmallFloat(const SmallFloat& format, std::mt19937_64& random) {
  const auto bits = static_cast<std::uint16_t>(random());
  return bits % 4 == 0 ? static_cast<std::uint16_t>(random())
                       : format.Encode(RandomFloat<float>(random));
}

template <typename Make>
void FillWith(std::vector<std::byte>& elements, Make make) {
  using T = decltype(make());
  const auto count = static_cast<std::int64_t>(elements.size() / sizeof(T));
  for (std::int64_t index = 0; index < count; ++index) Put<T>(elements.data(), index, make());
}

// Eight bytes at a time; every now and then zeros.
void FillWithBits(std::vector<std::byte>& elements, std::mt19937_64& random) {
  for (std::size_t at = 0; at < elements.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t bits = random();
    if (bits % 8 == 0) bits &= bits >> 32;
    std::memcpy(elements.data() + at, &bits, std::min(sizeof(bits), elements.size() - at));
  }
}

}  // namespace

void ReferenceReduce(const ReduceSpec& spec, std::span<const void* const> inputs, void* output,
                     std::int64_t count) {
  switch (spec.dtype) {
    case DType::kUint8:
      return ForEachInteger<std::uint8_t>(spec, inputs, output, count);
    case DType::kInt8:
      return ForEachInteger<std::int8_t>(spec, inputs, output, count);
    case DType::kInt16:
      return ForEachInteger<std::int16_t>(spec, inputs, output, count);
    case DType::kInt32:
      return ForEachInteger<std::int32_t>(spec, inputs, output, count);
    case DType::kInt64:
      return ForEachInteger<std::int64_t>(spec, inputs, output, count);
    case DType::kFloat16:
      return ForEachSmallFloat(kHalf, spec, inputs, output, count);
    case DType::kBfloat16:
      return ForEachSmallFloat(kBrain, spec, inputs, output, count);
    case DType::kFloat32:
      return ForEachStandardFloat<float>(spec, inputs, output, count);
    case DType::kFloat64:
      return ForEachStandardFloat<double>(spec, inputs, output, count);
    case DType::kBool:
      return ForEachBool(spec, inputs, output, count);
  }
  HVL_CHECK(false, "no such element type");
}

// Integers are not grouped at all: their sums, products and averages are exact or wrap.
void ReferenceReduce(const ReduceSpec& spec, std::span<const int> group_ends,
                     std::span<const void* const> inputs, void* output, std::int64_t count) {
  if (group_ends.size() <= 1 || !tensor::IsFloat(spec.dtype)) {
    return ReferenceReduce(spec, inputs, output, count);
  }
  ReduceSpec within = spec;
  within.postscale = 1.0;
  if (within.op == ReduceOp::kAverage) within.op = ReduceOp::kSum;
  ReduceSpec across = spec;
  across.prescale = 1.0;
  std::vector<std::vector<std::byte>> partials;
  std::vector<const void*> pointers;
  std::size_t begin = 0;
  for (const int end : group_ends) {
    const std::size_t ranks = static_cast<std::size_t>(end) - begin;
    partials.emplace_back(static_cast<std::size_t>(count) * DTypeBytes(spec.dtype));
    ReferenceReduce(within, inputs.subspan(begin, ranks), partials.back().data(), count);
    begin += ranks;
  }
  for (const std::vector<std::byte>& partial : partials) pointers.push_back(partial.data());
  ReferenceReduce(across, pointers, output, count);
}

std::int64_t RandomBetween(std::int64_t lowest, std::int64_t highest, std::mt19937_64& random) {
  return std::uniform_int_distribution<std::int64_t>(lowest, highest)(random);
}

std::vector<std::byte> RandomElements(DType dtype, std::int64_t count, std::mt19937_64& random) {
  std::vector<std::byte> elements(static_cast<std::size_t>(count) * DTypeBytes(dtype));
  switch (dtype) {
    case DType::kFloat16:
      FillWith(elements, [&random] { return RandomSmallFloat(kHalf, random); });
      break;
    case DType::kBfloat16:
      FillWith(elements, [&random] { return RandomSmallFloat(kBrain, random); });
      break;
    case DType::kFloat32:
      FillWith(elements, [&random] { return RandomFloat<float>(random); });
      break;
    case DType::kFloat64:
      FillWith(elements, [&random] { return RandomFloat<double>(random); });
      break;
    case DType::kUint8:
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kBool:
      FillWithBits(elements, random);
      break;
  }
  return elements;
}

ReduceSpec RandomSpec(int rank_count, std::mt19937_64& random) {
  constexpr std::array<ReduceOp, 5> kOps = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                                            ReduceOp::kMax, ReduceOp::kProduct};
  constexpr std::array<double, 8> kFactors = {
      0.5, 3.0, 1.0 / 3, -1.75, 0.0, 1e-30, 1e30, std::numeric_limits<double>::infinity()};
  ReduceSpec spec{.rank_count = rank_count};
  do {
    spec.dtype = kDTypes[random() % kDTypes.size()];
    spec.op = kOps[random() % kOps.size()];
    spec.prescale = random() % 3 == 0 ? kFactors[random() % kFactors.size()] : 1.0;
    spec.postscale = random() % 3 == 0 ? kFactors[random() % kFactors.size()] : 1.0;
  } while (!tensor::CheckElementwise(spec).ok());
  return spec;
}

}  // namespace hvl::test
