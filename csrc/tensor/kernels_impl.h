// The reduction kernels, written once with the compiler's vector types and compiled once per
// instruction set: each kernels_<set>.cc defines HVL_KERNEL_SET and HVL_KERNEL_NAME and includes
// this file.
//
// Every element goes through the same operations in every set, in full and in partial vectors
// alike:
//
//   acc = inputs[0]*pre; acc = acc op inputs[r]*pre for r = 1..n-1; acc = acc/ranks * post; store
//
// Lanes never meet, so neither the vector width nor an element's position changes a bit. What could
// differ is excluded: fused multiply-add (-ffp-contract=off), the choice of a NaN payload (which
// depends on the order of an addition's operands; hence Canonical), and bfloat16 conversions in
// hardware (they flush denormals; done with integers here).
//
// Keep everything in the unnamed namespace and call no inline function of a header: see kernels.h.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "csrc/tensor/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hvl::tensor {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kWidth = 64;
#elif defined(__AVX2__)
constexpr std::size_t kWidth = 32;
#else
constexpr std::size_t kWidth = 16;
#endif
constexpr std::size_t kLineBytes = 64;
// Vectors in flight per step: hides the latency of an addition, and pays for the loop over inputs.
constexpr int kUnroll = 4;

#define HVL_INLINE inline __attribute__((always_inline))

template <typename T, std::size_t kBytes = kWidth>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));
};
template <typename T, std::size_t kBytes = kWidth>
using Vector = typename VectorOf<T, kBytes>::Type;

using Floats = Vector<float>;
using Words = Vector<std::uint32_t>;
// As many 16-bit values as Floats has lanes.
using Halfs = Vector<std::uint16_t, kWidth / 2>;

template <typename T>
HVL_INLINE Vector<T> Broadcast(T value) {
  Vector<T> result;
  for (std::size_t lane = 0; lane < kWidth / sizeof(T); ++lane) result[lane] = value;
  return result;
}

template <typename V>
HVL_INLINE V LoadUnaligned(const std::byte* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}

// A non-temporal store needs `to` aligned to the size of the vector.
template <typename V>
HVL_INLINE void StoreVector(std::byte* to, V value, [[maybe_unused]] bool non_temporal) {
#if defined(__x86_64__)
  if (non_temporal) {
#if defined(__AVX512F__)
    if constexpr (sizeof(V) == 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(value));
    }
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(V) == 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(value));
    }
#endif
    if constexpr (sizeof(V) == 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(value));
    }
    if constexpr (sizeof(V) == 8) {
      _mm_stream_si64(reinterpret_cast<long long*>(to), reinterpret_cast<long long>(value));
    }
    return;
  }
#endif
  __builtin_memcpy(to, &value, sizeof(V));
}

// Non-temporal stores are not ordered by the flag stores that follow them.
HVL_INLINE void DrainNonTemporalStores() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// A constant and not the call, which an unoptimised build would leave as a shared symbol.
template <typename T>
constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

// ---- Formats: how memory becomes a vector of accumulators, and back.

template <typename V>
HVL_INLINE V Canonical(V value, V nan) {
  return value == value ? value : nan;
}

template <typename T>
struct FloatFormat {
  using Scalar = T;
  using Accumulator = Vector<T>;
  static constexpr std::size_t kBytes = kWidth;
  static constexpr std::size_t kElementBytes = sizeof(T);

  static HVL_INLINE Accumulator Load(const std::byte* from) {
    return LoadUnaligned<Accumulator>(from);
  }
  static HVL_INLINE void Store(std::byte* to, Accumulator value, bool non_temporal) {
    const auto nan = Broadcast(kNan<T>);
    StoreVector(to, Canonical(value, nan), non_temporal);
  }
};

template <typename T>
struct IntegerFormat {
  using Scalar = T;
  using Accumulator = Vector<T>;
  static constexpr std::size_t kBytes = kWidth;
  static constexpr std::size_t kElementBytes = sizeof(T);

  static HVL_INLINE Accumulator Load(const std::byte* from) {
    return LoadUnaligned<Accumulator>(from);
  }
  static HVL_INLINE void Store(std::byte* to, Accumulator value, bool non_temporal) {
    StoreVector(to, value, non_temporal);
  }
};

struct BoolFormat {
  using Scalar = std::uint8_t;
  using Accumulator = Vector<std::uint8_t>;
  static constexpr std::size_t kBytes = kWidth;
  static constexpr std::size_t kElementBytes = 1;

  static HVL_INLINE Accumulator Load(const std::byte* from) {
    const auto bytes = LoadUnaligned<Accumulator>(from);
    const auto one = Broadcast(std::uint8_t{1});
    return bytes == Accumulator{} ? Accumulator{} : one;
  }
  static HVL_INLINE void Store(std::byte* to, Accumulator value, bool non_temporal) {
    StoreVector(to, value, non_temporal);
  }
};

// bfloat16 is the upper half of a float32.
struct Bfloat16Format {
  using Scalar = float;
  using Accumulator = Floats;
  static constexpr std::size_t kBytes = kWidth / 2;
  static constexpr std::size_t kElementBytes = 2;

  static HVL_INLINE Accumulator Load(const std::byte* from) {
    const auto wide = __builtin_convertvector(LoadUnaligned<Halfs>(from), Words) << 16;
    return reinterpret_cast<Floats>(wide);
  }
  static HVL_INLINE void Store(std::byte* to, Accumulator value, bool non_temporal) {
    const auto nan = Broadcast(kNan<float>);
    const auto bits = reinterpret_cast<Words>(Canonical(value, nan));
    // Adds half a unit of the last place kept, and one bit less when that place is even: a carry
    // into the kept bits happens exactly when rounding to nearest even goes up. Too large a value
    // carries into infinity; the canonical NaN has no low bits to carry.
    const auto rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    StoreVector(to, __builtin_convertvector(rounded, Halfs), non_temporal);
  }
};

// Baseline processors have no conversion instruction for float16.
[[maybe_unused]] HVL_INLINE Floats HalfToFloatInSoftware(Halfs half) {
  const auto bits = __builtin_convertvector(half, Words);
  const auto magnitude = bits & 0x7fff;
  // The bits at float32's place, but with the bias of float16: 2^112 too small. The product is
  // exact, and normalises denormals.
  const auto scaled = reinterpret_cast<Floats>(magnitude << 13) * 0x1p112F;
  const auto special = (magnitude << 13) | 0x7f800000;  // infinity or NaN
  const auto value = magnitude >= 0x7c00 ? special : reinterpret_cast<Words>(scaled);
  return reinterpret_cast<Floats>(value | ((bits & 0x8000) << 16));
}

// Requires NaN to be canonical.
[[maybe_unused]] HVL_INLINE Halfs FloatToHalfInSoftware(Floats value) {
  const auto bits = reinterpret_cast<Words>(value);
  const auto magnitude = bits & 0x7fffffff;
  const auto infinity = Broadcast(std::uint32_t{0x7c00});
  const auto nan = Broadcast(std::uint32_t{0x7e00});
  // From 2^16 on: infinity. (65520 to 2^16 gets there by the carry below.)
  const auto special = magnitude > 0x7f800000 ? nan : infinity;
  // Below 2^-14: a unit of 0.5f is 2^-24, the smallest float16, so the addition rounds to it.
  const auto aligned = reinterpret_cast<Words>(reinterpret_cast<Floats>(magnitude) + 0.5F);
  const auto denormal = aligned - 0x3f000000;
  // Otherwise: change the bias, round to nearest even as for bfloat16.
  const auto normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const auto finite = magnitude < 0x38800000 ? denormal : normal;
  const auto half = magnitude >= 0x47800000 ? special : finite;
  return __builtin_convertvector(half | ((bits >> 16) & 0x8000), Halfs);
}

HVL_INLINE Floats HalfToFloat(Halfs half) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(reinterpret_cast<__m256i>(half));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(half));
#else
  return HalfToFloatInSoftware(half);
#endif
}

HVL_INLINE Halfs FloatToHalf(Floats value) {
#if defined(__AVX512F__)
  return reinterpret_cast<Halfs>(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  return reinterpret_cast<Halfs>(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
#else
  return FloatToHalfInSoftware(value);
#endif
}

struct Float16Format {
  using Scalar = float;
  using Accumulator = Floats;
  static constexpr std::size_t kBytes = kWidth / 2;
  static constexpr std::size_t kElementBytes = 2;

  static HVL_INLINE Accumulator Load(const std::byte* from) {
    return HalfToFloat(LoadUnaligned<Halfs>(from));
  }
  static HVL_INLINE void Store(std::byte* to, Accumulator value, bool non_temporal) {
    const auto nan = Broadcast(kNan<float>);
    StoreVector(to, FloatToHalf(Canonical(value, nan)), non_temporal);
  }
};

// ---- Operations on accumulators. Integers are unsigned in sums and products, where they wrap.

struct Sum {
  template <typename V>
  static HVL_INLINE V Combine(V a, V b) {
    return a + b;
  }
};
struct Product {
  template <typename V>
  static HVL_INLINE V Combine(V a, V b) {
    return a * b;
  }
};
// A NaN wins over numbers; of two equal values (0 and -0) the earlier rank's stays.
struct Min {
  template <typename V>
  static HVL_INLINE V Combine(V a, V b) {
    return (a <= b) | (a != a) ? a : b;
  }
};
struct Max {
  template <typename V>
  static HVL_INLINE V Combine(V a, V b) {
    return (a >= b) | (a != a) ? a : b;
  }
};

// The scale factors and the divisor of an average.
template <typename T>
struct Factors {
  explicit Factors(const ReduceArgs& args)
      : pre(Broadcast(static_cast<T>(args.prescale))),
        post(Broadcast(static_cast<T>(args.postscale))) {
    const int ranks = args.op == ReduceOp::kAverage ? args.rank_count : 1;
    // A product with the reciprocal of a power of two is the quotient, to the bit, and faster.
    divide = (ranks & (ranks - 1)) != 0;
    const auto count = static_cast<T>(ranks);
    divisor = Broadcast(divide ? count : T{1} / count);
  }

  HVL_INLINE Vector<T> Prepare(Vector<T> value) const { return value * pre; }
  HVL_INLINE Vector<T> Finish(Vector<T> value) const {
    return (divide ? value / divisor : value * divisor) * post;
  }

  Vector<T> pre;
  Vector<T> post;
  Vector<T> divisor;  ///< or its reciprocal, unless `divide`
  bool divide;
};

template <typename T>
struct NoFactors {
  explicit NoFactors(const ReduceArgs&) {}
  HVL_INLINE Vector<T> Prepare(Vector<T> value) const { return value; }
  HVL_INLINE Vector<T> Finish(Vector<T> value) const { return value; }
};

// ---- The loop over elements.

template <typename Format, typename Op, template <typename> typename Scaling = NoFactors>
class VectorLoop {
  using Accumulator = Vector<typename Format::Scalar>;
  using Scalings = Scaling<typename Format::Scalar>;
  static constexpr std::size_t kBytes = Format::kBytes;

 public:
  static void Run(const ReduceArgs& args) {
    const Scalings factors(args);
    const std::size_t total = static_cast<std::size_t>(args.count) * Format::kElementBytes;
    std::size_t at = 0;
    std::size_t head = 0;
    const bool non_temporal = args.non_temporal && Alignable(args, head);
    while (at < head && at < total) {
      const std::size_t bytes = Least(kBytes, Least(head, total) - at);
      Partial(args, factors, at, bytes);
      at += bytes;
    }
    for (; total - at >= kUnroll * kBytes; at += kUnroll * kBytes) {
      Full<kUnroll>(args, factors, at, non_temporal);
    }
    for (; total - at >= kBytes; at += kBytes) Full<1>(args, factors, at, non_temporal);
    if (at < total) Partial(args, factors, at, total - at);
    if (non_temporal) DrainNonTemporalStores();
  }

 private:
  static std::size_t Least(std::size_t a, std::size_t b) { return a < b ? a : b; }

  // True if the same number of whole elements (`head` bytes) brings every output to a cache line.
  static bool Alignable(const ReduceArgs& args, std::size_t& head) {
    const auto misalignment = [](const void* address) {
      return reinterpret_cast<std::uintptr_t>(address) % kLineBytes;
    };
    const std::size_t first = misalignment(args.outputs[0]);
    for (std::int64_t k = 1; k < args.output_count; ++k) {
      if (misalignment(args.outputs[k]) != first) return false;
    }
    if (first % Format::kElementBytes != 0) return false;
    head = (kLineBytes - first) % kLineBytes;
    return true;
  }

  static HVL_INLINE Accumulator Load(const std::byte* from, const Scalings& factors) {
    return factors.Prepare(Format::Load(from));
  }

  // kCount vectors at byte `at`. Reads every input before it writes, so outputs may be inputs.
  template <int kCount>
  static HVL_INLINE void Full(const ReduceArgs& args, const Scalings& factors, std::size_t at,
                              bool non_temporal) {
    Accumulator acc[kCount];
    const auto* first = static_cast<const std::byte*>(args.inputs[0]) + at;
    for (int v = 0; v < kCount; ++v) {
      acc[v] = Load(first + static_cast<std::size_t>(v) * kBytes, factors);
    }
    for (std::int64_t r = 1; r < args.input_count; ++r) {
      const auto* from = static_cast<const std::byte*>(args.inputs[r]) + at;
      for (int v = 0; v < kCount; ++v) {
        acc[v] = Op::Combine(acc[v], Load(from + static_cast<std::size_t>(v) * kBytes, factors));
      }
    }
    for (Accumulator& value : acc) value = factors.Finish(value);
    for (std::int64_t k = 0; k < args.output_count; ++k) {
      auto* to = static_cast<std::byte*>(args.outputs[k]) + at;
      for (int v = 0; v < kCount; ++v) {
        Format::Store(to + static_cast<std::size_t>(v) * kBytes, acc[v], non_temporal);
      }
    }
  }

  // Fewer elements than a vector has, by the same vector code on copies.
  static void Partial(const ReduceArgs& args, const Scalings& factors, std::size_t at,
                      std::size_t bytes) {
    std::byte copy[kBytes] = {};
    const auto load = [&](std::int64_t r) {
      __builtin_memcpy(copy, static_cast<const std::byte*>(args.inputs[r]) + at, bytes);
      return Load(copy, factors);
    };
    Accumulator acc = load(0);
    for (std::int64_t r = 1; r < args.input_count; ++r) acc = Op::Combine(acc, load(r));
    acc = factors.Finish(acc);
    Format::Store(copy, acc, /*non_temporal=*/false);
    for (std::int64_t k = 0; k < args.output_count; ++k) {
      __builtin_memcpy(static_cast<std::byte*>(args.outputs[k]) + at, copy, bytes);
    }
  }
};

// ---- Integers that need more than their own width: averages and scale factors. One by one: rare.

__extension__ typedef __int128 Int128;

template <typename T>
T ScaleInteger(T value, double factor) {
  if (factor == 1.0) return value;  // float64 could not hold every int64
  constexpr T kLowest = std::numeric_limits<T>::min();
  constexpr T kHighest = std::numeric_limits<T>::max();
  const double scaled = static_cast<double>(value) * factor;
  if (scaled != scaled) return 0;
  if (scaled <= static_cast<double>(kLowest)) return kLowest;
  // The cast of int64's highest value rounds up to 2^63; smaller doubles are in range.
  if (scaled >= static_cast<double>(kHighest)) return kHighest;
  return static_cast<T>(scaled);
}

template <typename T>
T CombineInteger(ReduceOp op, T a, T b) {
  // Small types would be promoted to int, where their product can overflow.
  using Wrapping = std::uint64_t;
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
    case ReduceOp::kProduct:
      return static_cast<T>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
    case ReduceOp::kMin:
      return a <= b ? a : b;
    case ReduceOp::kMax:
      return a >= b ? a : b;
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      break;  // not pairwise, or refused by CheckReduction
  }
  __builtin_unreachable();
}

template <typename T>
T LoadInteger(const void* from, std::int64_t index) {
  T value;
  __builtin_memcpy(&value, static_cast<const std::byte*>(from) + index * std::int64_t{sizeof(T)},
                   sizeof(T));
  return value;
}

template <typename T>
T AverageIntegers(const ReduceArgs& args, std::int64_t index) {
  // Rank counts have 31 bits: only sums of int64 need more than 64.
  using Wide = std::conditional_t<sizeof(T) == 8, Int128, std::int64_t>;
  Wide sum = 0;
  for (std::int64_t r = 0; r < args.input_count; ++r) {
    sum += ScaleInteger(LoadInteger<T>(args.inputs[r], index), args.prescale);
  }
  Wide quotient = sum / args.rank_count;
  if (sum % args.rank_count < 0) --quotient;  // division truncates; the average floors
  return static_cast<T>(quotient);
}

template <typename T>
void ReduceWide(const ReduceArgs& args) {
  for (std::int64_t index = 0; index < args.count; ++index) {
    T result;
    if (args.op == ReduceOp::kAverage) {
      result = AverageIntegers<T>(args, index);
    } else {
      result = ScaleInteger(LoadInteger<T>(args.inputs[0], index), args.prescale);
      for (std::int64_t r = 1; r < args.input_count; ++r) {
        result = CombineInteger<T>(
            args.op, result, ScaleInteger(LoadInteger<T>(args.inputs[r], index), args.prescale));
      }
    }
    result = ScaleInteger(result, args.postscale);
    for (std::int64_t k = 0; k < args.output_count; ++k) {
      __builtin_memcpy(static_cast<std::byte*>(args.outputs[k]) + index * std::int64_t{sizeof(T)},
                       &result, sizeof(T));
    }
  }
}

// ---- Choice of the loop. Unknown types and operations were refused by CheckReduction.

template <typename Format, template <typename> typename Scaling>
void ReduceFloats(const ReduceArgs& args) {
  switch (args.op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return VectorLoop<Format, Sum, Scaling>::Run(args);
    case ReduceOp::kMin:
      return VectorLoop<Format, Min, Scaling>::Run(args);
    case ReduceOp::kMax:
      return VectorLoop<Format, Max, Scaling>::Run(args);
    case ReduceOp::kProduct:
      return VectorLoop<Format, Product, Scaling>::Run(args);
    case ReduceOp::kAdasum:
      break;
  }
  __builtin_unreachable();
}

bool IsScaled(const ReduceArgs& args) { return args.prescale != 1.0 || args.postscale != 1.0; }

template <typename Format>
void ReduceFloats(const ReduceArgs& args) {
  const bool divided = args.op == ReduceOp::kAverage && args.rank_count != 1;
  if (divided || IsScaled(args)) {
    ReduceFloats<Format, Factors>(args);
  } else {
    ReduceFloats<Format, NoFactors>(args);
  }
}

template <typename T>
void ReduceIntegers(const ReduceArgs& args) {
  if (args.op == ReduceOp::kAverage || IsScaled(args)) return ReduceWide<T>(args);
  using Wrapping = IntegerFormat<std::make_unsigned_t<T>>;
  switch (args.op) {
    case ReduceOp::kSum:
      return VectorLoop<Wrapping, Sum>::Run(args);
    case ReduceOp::kProduct:
      return VectorLoop<Wrapping, Product>::Run(args);
    case ReduceOp::kMin:
      return VectorLoop<IntegerFormat<T>, Min>::Run(args);
    case ReduceOp::kMax:
      return VectorLoop<IntegerFormat<T>, Max>::Run(args);
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      break;
  }
  __builtin_unreachable();
}

void ReduceBools(const ReduceArgs& args) {
  if (args.op == ReduceOp::kMax) return VectorLoop<BoolFormat, Max>::Run(args);
  VectorLoop<BoolFormat, Min>::Run(args);  // Product of 0s and 1s is their Min
}

void ReduceInThisSet(const ReduceArgs& args) {
  switch (args.dtype) {
    case DType::kUint8:
      return ReduceIntegers<std::uint8_t>(args);
    case DType::kInt8:
      return ReduceIntegers<std::int8_t>(args);
    case DType::kInt16:
      return ReduceIntegers<std::int16_t>(args);
    case DType::kInt32:
      return ReduceIntegers<std::int32_t>(args);
    case DType::kInt64:
      return ReduceIntegers<std::int64_t>(args);
    case DType::kFloat16:
      return ReduceFloats<Float16Format>(args);
    case DType::kFloat32:
      return ReduceFloats<FloatFormat<float>>(args);
    case DType::kFloat64:
      return ReduceFloats<FloatFormat<double>>(args);
    case DType::kBool:
      return ReduceBools(args);
    case DType::kBfloat16:
      return ReduceFloats<Bfloat16Format>(args);
  }
  __builtin_unreachable();
}

void CopyNonTemporal(void* output, const void* input, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(output);
  const auto* from = static_cast<const std::byte*>(input);
  using V = Vector<std::uint8_t>;
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  std::size_t at = (kLineBytes - misaligned) % kLineBytes;
  if (at > bytes) at = bytes;
  __builtin_memcpy(to, from, at);
  constexpr std::size_t kStep = kUnroll * kWidth;
  for (; bytes - at >= kStep; at += kStep) {
    V values[kUnroll];
    for (std::size_t v = 0; v < kUnroll; ++v) values[v] = LoadUnaligned<V>(from + at + v * kWidth);
    for (std::size_t v = 0; v < kUnroll; ++v) StoreVector(to + at + v * kWidth, values[v], true);
  }
  __builtin_memcpy(to + at, from + at, bytes - at);
  DrainNonTemporalStores();
}

}  // namespace

const KernelSet HVL_KERNEL_SET = {
    .name = HVL_KERNEL_NAME, .reduce = ReduceInThisSet, .copy_non_temporal = CopyNonTemporal};

}  // namespace hvl::tensor
