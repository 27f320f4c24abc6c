// Reduction kernels: every instruction set this machine has gives the bits of the oracle, for any
// type, operation, factors, count, alignment and aliasing.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>

#include "csrc/base/str.h"
#include "csrc/tensor/kernels.h"
#include "csrc/tensor/reduce.h"
#include "tests/support/reference_reduce.h"
#include "tests/support/repeated_mapping.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hvl::tensor {
namespace {

using test::RandomBetween;
using test::RandomElements;
using test::RandomSpec;
using test::ReferenceReduce;
using Bytes = std::vector<std::byte>;

// Memory at a chosen distance from a cache line, with a guard on both sides that must not change.
class GuardedBuffer {
 public:
  GuardedBuffer(const Bytes& content, std::size_t misalignment)
      : storage_(content.size() + 3 * kGuard, kPattern), size_(content.size()) {
    void* start = storage_.data() + kGuard;
    std::size_t space = storage_.size() - kGuard;
    begin_ = static_cast<std::byte*>(std::align(64, 1, start, space)) + misalignment;
    std::copy(content.begin(), content.end(), begin_);
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  void* data() { return begin_; }
  Bytes content() const { return {begin_, begin_ + size_}; }
  bool GuardsIntact() const {
    const auto untouched = [](std::byte value) { return value == kPattern; };
    return std::all_of(storage_.data(), static_cast<const std::byte*>(begin_), untouched) &&
           std::all_of(static_cast<const std::byte*>(begin_) + size_,
                       storage_.data() + storage_.size(), untouched);
  }

 private:
  static constexpr std::size_t kGuard = 128;
  static constexpr std::byte kPattern{0xa5};
  Bytes storage_;
  std::size_t size_;
  std::byte* begin_ = nullptr;
};

struct Trial {
  ReduceSpec spec;
  std::int64_t count = 0;
  std::vector<Bytes> inputs;
  std::vector<std::size_t> misalignments;  // inputs, then separate outputs
  std::vector<std::size_t> in_place;       // inputs that are outputs as well
  std::size_t separate_outputs = 0;
  std::vector<StoreHint> hints = {StoreHint::kOrdinary};  // of outputs, used in turn

  std::string Description() const {
    return Format("{} {} pre {} post {} inputs {} count {} in place {} outputs {}",
                  DTypeName(spec.dtype), ReduceOpName(spec.op), spec.prescale, spec.postscale,
                  inputs.size(), count, in_place.size(), separate_outputs);
  }
};

Trial RandomTrial(std::mt19937_64& random) {
  Trial trial;
  const auto ranks = static_cast<std::size_t>(RandomBetween(1, 7, random));
  trial.spec = RandomSpec(static_cast<int>(ranks), random);
  trial.count = random() % 2 == 0 ? RandomBetween(1, 70, random) : RandomBetween(1, 1500, random);
  for (std::size_t r = 0; r < ranks; ++r) {
    trial.inputs.push_back(RandomElements(trial.spec.dtype, trial.count, random));
    if (random() % 3 == 0) trial.in_place.push_back(r);
  }
  trial.separate_outputs = random() % 3;
  if (trial.in_place.empty())
    trial.separate_outputs = std::max<std::size_t>(trial.separate_outputs, 1);
  // Now and then all alike, as non-temporal stores need it; else anywhere, also between elements.
  const bool alike = random() % 2 == 0;
  const std::size_t common = random() % 64;
  for (std::size_t i = 0; i < ranks + trial.separate_outputs; ++i) {
    trial.misalignments.push_back(alike ? common : random() % 64);
  }
  for (StoreHint hint : {StoreHint::kOrdinary, StoreHint::kNonTemporal}) {
    if (random() % 2 == 0) trial.hints.push_back(hint);
  }
  std::ranges::shuffle(trial.hints, random);
  return trial;
}

// The outputs' contents, after checking that nothing else was written.
std::vector<Bytes> Run(const KernelSet& kernels, const Trial& trial) {
  std::vector<std::unique_ptr<GuardedBuffer>> buffers;
  const auto add = [&](const Bytes& content) {
    buffers.push_back(
        std::make_unique<GuardedBuffer>(content, trial.misalignments[buffers.size()]));
    return buffers.back()->data();
  };
  std::vector<const void*> inputs;
  for (const Bytes& input : trial.inputs) inputs.push_back(add(input));
  std::vector<Output> outputs;
  const auto add_output = [&](void* data) {
    outputs.push_back({data, trial.hints[outputs.size() % trial.hints.size()]});
  };
  for (const std::size_t r : trial.in_place) add_output(buffers[r]->data());
  for (std::size_t k = 0; k < trial.separate_outputs; ++k) {
    add_output(add(Bytes(trial.inputs[0].size())));
  }
  kernels.reduce({.dtype = trial.spec.dtype,
                  .op = trial.spec.op,
                  .prescale = trial.spec.prescale,
                  .postscale = trial.spec.postscale,
                  .rank_count = trial.spec.rank_count,
                  .inputs = inputs.data(),
                  .input_count = static_cast<std::int64_t>(inputs.size()),
                  .outputs = outputs.data(),
                  .output_count = static_cast<std::int64_t>(outputs.size()),
                  .count = trial.count});
  std::vector<Bytes> results;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    CHECK(buffers[i]->GuardsIntact());
    const bool is_output =
        std::ranges::find(outputs, buffers[i]->data(), &Output::data) != outputs.end();
    if (is_output) {
      results.push_back(buffers[i]->content());
    } else {
      CHECK(buffers[i]->content() == trial.inputs[i]);
    }
  }
  return results;
}

Bytes Expected(const Trial& trial) {
  std::vector<const void*> inputs;
  for (const Bytes& input : trial.inputs) inputs.push_back(input.data());
  Bytes expected(trial.inputs[0].size());
  ReferenceReduce(trial.spec, inputs, expected.data(), trial.count);
  return expected;
}

std::size_t FirstDifference(const Bytes& a, const Bytes& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

TEST_CASE("every instruction set gives the oracle's bits in random trials") {
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed());
  REQUIRE(SupportedKernels().size() >= 1);
  for (int number = 0; number < 6000; ++number) {
    const Trial trial = RandomTrial(random);
    const Bytes expected = Expected(trial);
    for (const KernelSet* kernels : SupportedKernels()) {
      INFO("trial " << number << ": " << kernels->name << " " << trial.Description());
      for (const Bytes& result : Run(*kernels, trial)) {
        INFO("first different byte " << FirstDifference(result, expected));
        CHECK(result == expected);
      }
    }
  }
}

// All 2^16 values, so every rounding, denormal, infinity and NaN of the 16-bit types.
Bytes AllSmallFloats() {
  std::array<std::uint16_t, 65536> values{};
  std::iota(values.begin(), values.end(), std::uint16_t{0});
  Bytes bytes(sizeof(values));
  std::memcpy(bytes.data(), values.data(), sizeof(values));
  return bytes;
}

TEST_CASE("every 16-bit float is converted, scaled and rounded as the oracle does") {
  const DType dtype = GENERATE(DType::kFloat16, DType::kBfloat16);
  const double prescale = GENERATE(1.0, 0.75, 1.0 / 3, 0x1p-12, 1.00048828125, -4096.0);
  const Trial trial{.spec = {.dtype = dtype, .op = ReduceOp::kSum, .prescale = prescale},
                    .count = 65536,
                    .inputs = {AllSmallFloats()},
                    .misalignments = {0, 0},
                    .in_place = {},
                    .separate_outputs = 1};
  const Bytes expected = Expected(trial);
  for (const KernelSet* kernels : SupportedKernels()) {
    INFO(kernels->name << " " << trial.Description());
    CHECK(Run(*kernels, trial).at(0) == expected);
  }
}

template <typename T>
T ReduceOne(ReduceSpec spec, std::vector<T> values) {
  spec.rank_count = static_cast<int>(values.size());
  std::vector<const void*> inputs;
  for (const T& value : values) inputs.push_back(&value);
  T result{};
  Reduce(spec, inputs, &result, 1);
  return result;
}

TEST_CASE("float16 and bfloat16 accumulate in float32 and round once, to nearest even") {
  // 2048 + 1 is a tie in float16; adding the second 1 first reaches 2050.
  const std::uint16_t two_k = 0x6800;
  const std::uint16_t one = 0x3c00;
  CHECK(ReduceOne<std::uint16_t>({.dtype = DType::kFloat16}, {two_k, one}) == 0x6800);
  CHECK(ReduceOne<std::uint16_t>({.dtype = DType::kFloat16}, {two_k, one, one}) == 0x6801);
  // 256 + 1 + 1 in bfloat16.
  CHECK(ReduceOne<std::uint16_t>({.dtype = DType::kBfloat16}, {0x4380, 0x3f80}) == 0x4380);
  CHECK(ReduceOne<std::uint16_t>({.dtype = DType::kBfloat16}, {0x4380, 0x3f80, 0x3f80}) == 0x4381);
}

TEST_CASE("groups are folded on their own, and each of their sums is rounded once") {
  // In bfloat16 256 + 1 is a tie, and 256 + 1 + 1 is not.
  const std::array<std::uint16_t, 3> values = {0x4380, 0x3f80, 0x3f80};
  const auto sum = [&values](std::vector<int> group_ends, ReduceOp op = ReduceOp::kSum) {
    const ReduceSpec spec{.dtype = DType::kBfloat16, .op = op, .rank_count = 2};
    const std::array<const void*, 3> inputs = {values.data(), &values[1], &values[2]};
    std::uint16_t result = 0;
    Reduce(spec, group_ends, inputs, &result, 1);
    return result;
  };
  CHECK(sum({}) == 0x4381);
  CHECK(sum({3}) == 0x4381);
  CHECK(sum({2, 3}) == 0x4380);     // (256 + 1) + 1
  CHECK(sum({1, 3}) == 0x4381);     // 256 + (1 + 1)
  CHECK(sum({1, 2, 3}) == 0x4381);  // nothing to round
  CHECK(sum({1, 3}, ReduceOp::kAverage) == 0x4301);
  CHECK(PartialsKeepResult({.dtype = DType::kFloat16, .op = ReduceOp::kAverage}));
  CHECK(PartialsKeepResult({.dtype = DType::kInt8, .op = ReduceOp::kSum}));
  CHECK_FALSE(PartialsKeepResult({.dtype = DType::kInt8, .op = ReduceOp::kAverage}));
}

TEST_CASE("reductions over groups give the oracle's bits, in place and in one or two steps") {
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed());
  for (int number = 0; number < 2000; ++number) {
    const int ranks = static_cast<int>(RandomBetween(1, number % 100 == 0 ? 600 : 9, random));
    const ReduceSpec spec = RandomSpec(ranks, random);
    const std::int64_t count = RandomBetween(0, number % 10 == 0 ? 9000 : 50, random);
    std::vector<int> group_ends;
    for (int end = 1; end <= ranks; ++end) {
      if (end == ranks || random() % 2 == 0) group_ends.push_back(end);
    }
    INFO("trial " << number << ": " << DTypeName(spec.dtype) << " " << ReduceOpName(spec.op)
                  << " pre " << spec.prescale << " post " << spec.postscale << ", " << ranks
                  << " inputs in " << group_ends.size() << " groups, count " << count);
    std::vector<Bytes> inputs;
    std::vector<const void*> pointers;
    for (int rank = 0; rank < ranks; ++rank) {
      inputs.push_back(RandomElements(spec.dtype, count, random));
    }
    for (const Bytes& input : inputs) pointers.push_back(input.data());
    Bytes expected(inputs[0].size());
    ReferenceReduce(spec, group_ends, pointers, expected.data(), count);

    std::vector<Bytes> partials(group_ends.size(), Bytes(expected.size()));
    Bytes in_two_steps(expected.size());
    if (PartialsKeepResult(spec)) {
      std::vector<const void*> of_groups;
      std::size_t begin = 0;
      for (std::size_t group = 0; group < partials.size(); ++group) {
        const std::size_t members = static_cast<std::size_t>(group_ends[group]) - begin;
        Reduce(PartialSpec(spec), std::span(pointers).subspan(begin, members),
               partials[group].data(), count);
        of_groups.push_back(partials[group].data());
        begin += members;
      }
      // One group is not rounded between the steps, so there is only one.
      if (partials.size() > 1) {
        Reduce(FinalSpec(spec), of_groups, in_two_steps.data(), count);
        CHECK(in_two_steps == expected);
      }
    }
    Bytes apart(expected.size());
    Bytes& in_place = inputs[random() % inputs.size()];
    const std::array<Output, 2> outputs = {{{apart.data()}, {in_place.data()}}};
    Reduce(spec, group_ends, pointers, outputs, count);
    CHECK(apart == expected);
    CHECK(in_place == expected);
  }
}

TEST_CASE("integer averages round towards zero and do not overflow") {
  const ReduceSpec int8{.dtype = DType::kInt8, .op = ReduceOp::kAverage};
  CHECK(ReduceOne<std::int8_t>(int8, {-1, 0}) == 0);
  CHECK(ReduceOne<std::int8_t>(int8, {1, 0}) == 0);
  CHECK(ReduceOne<std::int8_t>(int8, {-2, -3}) == -2);
  CHECK(ReduceOne<std::int8_t>(int8, {127, 127, 127}) == 127);
  const std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
  CHECK(ReduceOne<std::int64_t>({.dtype = DType::kInt64, .op = ReduceOp::kAverage},
                                {lowest, lowest, lowest}) == lowest);
}

TEST_CASE("an average next to a whole number is not rounded to it") {
  const ReduceSpec average{.dtype = DType::kInt32, .op = ReduceOp::kAverage};
  constexpr std::int32_t kHighest = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();
  for (const std::size_t ranks : {2, 3, 7, 1000}) {
    std::vector<std::int32_t> values(ranks, kHighest);
    values.back() -= 1;
    CHECK(ReduceOne(average, values) == kHighest - 1);
    values.assign(ranks, kLowest);
    values.back() += 1;
    CHECK(ReduceOne(average, values) == kLowest + 1);
  }
}

TEST_CASE("integer sums wrap; scale factors truncate and saturate") {
  CHECK(ReduceOne<std::int32_t>({.dtype = DType::kInt32}, {2147483647, 1}) == -2147483647 - 1);
  CHECK(ReduceOne<std::int32_t>({.dtype = DType::kInt32, .prescale = 0.5}, {3, -3}) == 0);
  CHECK(ReduceOne<std::uint8_t>({.dtype = DType::kUint8, .postscale = 3.0}, {100}) == 255);
  CHECK(ReduceOne<std::uint8_t>({.dtype = DType::kUint8, .postscale = -1.0}, {100}) == 0);
}

#if defined(__x86_64__)
TEST_CASE("the calling thread's floating-point mode changes neither the result nor is it changed") {
  const unsigned saved = _mm_getcsr();
  const float denormal = 1e-40F;
  // Flush to zero, denormals are zero, round up.
  const unsigned hostile = (saved & ~0x6000U) | 0x8040U | 0x4000U;
  _mm_setcsr(hostile);
  const float kept = ReduceOne<float>({.dtype = DType::kFloat32}, {denormal, 0.0F});
  const float nearest = ReduceOne<float>({.dtype = DType::kFloat32}, {1.0F, 1e-10F});
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  CHECK(kept == denormal);
  CHECK(nearest == 1.0F);
  CHECK((after & ~0x3fU) == (hostile & ~0x3fU));
}
#endif

TEST_CASE("Copy copies any count to any address with either store") {
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed());
  for (int number = 0; number < 2000; ++number) {
    const Bytes source = RandomElements(DType::kUint8, RandomBetween(0, 2000, random), random);
    GuardedBuffer from(source, random() % 64);
    for (const KernelSet* kernels : SupportedKernels()) {
      GuardedBuffer to(Bytes(source.size()), random() % 64);
      kernels->copy_non_temporal(to.data(), from.data(), source.size());
      INFO(kernels->name << " " << source.size() << " bytes");
      CHECK(to.content() == source);
      CHECK(to.GuardsIntact());
    }
    GuardedBuffer to(Bytes(source.size()), random() % 64);
    Copy(to.data(), from.data(), source.size(), StoreHint::kOrdinary);
    CHECK(to.content() == source);
  }
  Copy(nullptr, nullptr, 0, StoreHint::kNonTemporal);
}

// The thread sanitizer keeps four bytes for each one and each mapping: 17 GB here.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("counts above 2^31 are reduced to the last element") {
  test::RepeatedMapping a;
  test::RepeatedMapping b;
  a.Fill(std::byte{3});
  b.Fill(std::byte{7});
  const std::array<const void*, 2> inputs = {a.data(), b.data()};
  // Max is idempotent, so reducing a window in place again and again is harmless.
  Reduce({.dtype = DType::kUint8, .op = ReduceOp::kMax, .rank_count = 2}, inputs, a.data(),
         static_cast<std::int64_t>(test::RepeatedMapping::kBytes) - 1);
  CHECK(std::all_of(a.data(), a.data() + test::RepeatedMapping::kWindow,
                    [](std::byte value) { return value == std::byte{7}; }));
  CHECK(std::all_of(a.tail(), a.tail() + test::RepeatedMapping::kTail - 1,
                    [](std::byte value) { return value == std::byte{7}; }));
  CHECK(a.tail()[test::RepeatedMapping::kTail - 1] == std::byte{3});
}
#endif

TEST_CASE("undefined reductions are refused with the cure") {
  const auto message = [](const ReduceSpec& spec) {
    const Status status = CheckReduction(spec);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    return status.message();
  };
  using Catch::Contains;
  CHECK_THAT(message({.dtype = DType::kBool, .op = ReduceOp::kSum}),
             Contains("'sum' is not defined for bool") && Contains("min (all)"));
  CHECK_THAT(message({.dtype = DType::kBool, .op = ReduceOp::kAverage}), Contains("average"));
  CHECK_THAT(message({.dtype = DType::kBool, .op = ReduceOp::kMax, .postscale = 0.5}),
             Contains("postscale 0.5"));
  CHECK_THAT(message({.dtype = DType::kInt32, .op = ReduceOp::kAdasum}),
             Contains("adasum") && Contains("int32") && Contains("float32"));
  CHECK_THAT(message({.op = static_cast<ReduceOp>(42)}), Contains("42"));
  CHECK_THAT(message({.dtype = static_cast<DType>(77)}), Contains("77"));
  CHECK_THAT(message({.rank_count = 0}), Contains("0 ranks"));
  CHECK(CheckReduction({.dtype = DType::kBool, .op = ReduceOp::kProduct}).ok());
}

TEST_CASE("Adasum is a reduction of floating-point tensors, but not one element by element") {
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
    const ReduceSpec spec{.dtype = dtype, .op = ReduceOp::kAdasum};
    CHECK(CheckReduction(spec).ok());
    CHECK(CheckElementwise(spec).code() == StatusCode::kInvalidArgument);
  }
  CHECK(CheckElementwise({.op = ReduceOp::kSum}).ok());
}

TEST_CASE("every set of kernels widens exactly and narrows to the nearest") {
  const DType dtype = GENERATE(DType::kFloat16, DType::kBfloat16, DType::kFloat32);
  std::mt19937_64 random(Catch::rngSeed());
  INFO("--rng-seed " << Catch::rngSeed() << ", " << DTypeName(dtype));
  for (const std::int64_t count : {0, 1, 7, 16, 33, 70000}) {
    const Bytes elements = RandomElements(dtype, count, random);
    // Min over one rank is the identity, but for NaNs, which become the quiet one.
    Bytes expected(elements.size());
    const void* const input = elements.data();
    ReferenceReduce({.dtype = dtype, .op = ReduceOp::kMin}, {&input, 1}, expected.data(), count);
    for (const KernelSet* kernels : SupportedKernels()) {
      INFO(kernels->name << " " << count);
      std::vector<float> wide(static_cast<std::size_t>(count));
      kernels->widen(dtype, elements.data(), wide.data(), count);
      Bytes narrow(elements.size());
      kernels->narrow(dtype, wide.data(), narrow.data(), count);
      CHECK(narrow == expected);
    }
  }
  // Halfway between two neighbours of 1 goes to the even one, above halfway up.
  const float unit = dtype == DType::kFloat16 ? 0x1p-10F : 0x1p-7F;
  if (dtype == DType::kFloat32) return;
  const std::array<float, 3> between = {1 + unit / 2, 1 + unit * 3 / 2, 1 + unit * 0.75F};
  const std::array<float, 3> nearest = {1, 1 + 2 * unit, 1 + unit};
  for (const KernelSet* kernels : SupportedKernels()) {
    std::array<std::uint16_t, 3> narrow{};
    std::array<float, 3> wide{};
    kernels->narrow(dtype, between.data(), narrow.data(), 3);
    kernels->widen(dtype, narrow.data(), wide.data(), 3);
    CHECK(wide == nearest);
  }
}

TEST_CASE("Reduce uses the best instruction set of the machine") {
  CHECK(std::string(KernelName()) == SupportedKernels().back()->name);
}

}  // namespace
}  // namespace hvl::tensor
