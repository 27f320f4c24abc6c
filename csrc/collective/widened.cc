#include "csrc/collective/widened.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/collective/cuts.h"

namespace hvl::collective {
namespace {

using tensor::ReduceSpec;

__extension__ using Wide128 = __int128;

// Elements that are scaled at a time, on the stack.
constexpr std::int64_t kScaledAtOnce = 512;

template <typename Visit>
void VisitInteger(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kUint8:
      return visit(std::uint8_t{});
    case DType::kInt8:
      return visit(std::int8_t{});
    case DType::kInt16:
      return visit(std::int16_t{});
    case DType::kInt32:
      return visit(std::int32_t{});
    case DType::kInt64:
      return visit(std::int64_t{});
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kBool:
    case DType::kBfloat16:
      break;
  }
  HVL_CHECK(false, "not an integer type");
}

// A type that holds the sum of `ranks` numbers of `dtype`; of 64-bit ones, of their halves.
DType SumType(DType dtype, int ranks) {
  constexpr int kMostIn16 = 128;        // 128 * 255 < 2^15
  constexpr int kMostIn32 = (1 << 16);  // 2^16 * -2^15 = -2^31
  const std::size_t bytes = DTypeBytes(dtype);
  if (bytes == 1 && ranks <= kMostIn16) return DType::kInt16;
  return bytes <= 2 && ranks <= kMostIn32 ? DType::kInt32 : DType::kInt64;
}

bool IsHalf(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBfloat16; }

// How elements travel. The scale factor before the sum is applied where they come from.
//
//   float16, bfloat16    as float32, which is what the kernels add them in; scaled before that if
//                        each rank is a group of its own, whose partial sum is rounded
//   average of integers  as sums that cannot overflow. Of int64 x two words travel, x = 2^32 a + b
//                        with 0 <= b < 2^32, the upper ones of a block before its lower ones
//   all others           as they are
class WideForm {
 public:
  WideForm(const ReduceSpec& spec, SumGroups groups)
      : spec_(spec),
        groups_(groups),
        is_average_(!tensor::PartialsKeepResult(spec)),
        words_(is_average_ && spec.dtype == DType::kInt64 ? 2 : 1),
        inner_(tensor::FinalSpec(spec)) {
    if (IsHalf(spec.dtype)) inner_.dtype = DType::kFloat32;
    if (!is_average_) return;
    inner_ = {.dtype = SumType(spec.dtype, spec.rank_count),
              .op = ReduceOp::kSum,
              .rank_count = spec.rank_count};
  }

  /// How the words are reduced.
  const ReduceSpec& spec() const { return inner_; }
  std::int64_t words() const { return words_; }
  std::size_t word_bytes() const { return DTypeBytes(inner_.dtype); }
  std::size_t bytes_each() const { return static_cast<std::size_t>(words_) * word_bytes(); }

  /// The inputs of `pieces` as elements first, first + 1, ... of a block of `count`.
  void Widen(std::span<const ReducePiece> pieces, std::byte* block, std::int64_t first,
             std::int64_t count) const {
    for (const ReducePiece& piece : pieces) {
      WidenPiece(piece, block, first, count);
      first += piece.element_count;
    }
  }
  /// The results of a block of `count` to the outputs of `pieces`, which are all of it.
  void Finish(std::byte* block, std::int64_t count, std::span<const ReducePiece> pieces) const {
    std::int64_t first = 0;
    for (const ReducePiece& piece : pieces) {
      FinishPiece(block, first, count, piece);
      first += piece.element_count;
    }
  }

 private:
  std::byte* Word(std::byte* block, std::int64_t index) const {
    return block + static_cast<std::size_t>(index) * word_bytes();
  }

  void WidenPiece(const ReducePiece& piece, std::byte* block, std::int64_t first,
                  std::int64_t count) const {
    std::byte* const to = Word(block, first);
    if (is_average_) return WidenIntegers(piece, to, Word(block, count + first));
    const void* from = piece.input;
    if (IsHalf(spec_.dtype)) {
      if (spec_.prescale != 1.0 && groups_ == SumGroups::kEachRank)
        return WidenRounded(piece, reinterpret_cast<float*>(to));
      tensor::Widen(spec_.dtype, from, reinterpret_cast<float*>(to), piece.element_count);
      from = to;
      if (spec_.prescale == 1.0) return;
    }
    const ReduceSpec scale{.dtype = inner_.dtype, .op = ReduceOp::kSum, .prescale = spec_.prescale};
    tensor::Reduce(scale, {&from, 1}, to, piece.element_count);
  }

  void WidenRounded(const ReducePiece& piece, float* to) const {
    const ReduceSpec scale{.dtype = spec_.dtype, .op = ReduceOp::kSum, .prescale = spec_.prescale};
    std::array<std::uint16_t, kScaledAtOnce> scaled;
    for (std::int64_t done = 0; done < piece.element_count; done += kScaledAtOnce) {
      const std::int64_t step = std::min(kScaledAtOnce, piece.element_count - done);
      const void* from = static_cast<const std::byte*>(piece.input) +
                         static_cast<std::size_t>(done) * sizeof(std::uint16_t);
      tensor::Reduce(scale, {&from, 1}, scaled.data(), step);
      tensor::Widen(spec_.dtype, scaled.data(), to + done, step);
    }
  }

  void WidenIntegers(const ReducePiece& piece, std::byte* to, std::byte* lower) const {
    VisitInteger(spec_.dtype, [&]<typename T>(T) {
      VisitInteger(inner_.dtype, [&]<typename Wide>(Wide) {
        std::array<T, kScaledAtOnce> scaled;
        for (std::int64_t done = 0; done < piece.element_count; done += kScaledAtOnce) {
          const std::int64_t step = std::min(kScaledAtOnce, piece.element_count - done);
          const void* from = static_cast<const std::byte*>(piece.input) +
                             static_cast<std::size_t>(done) * sizeof(T);
          const ReduceSpec scale{
              .dtype = spec_.dtype, .op = ReduceOp::kSum, .prescale = spec_.prescale};
          tensor::Reduce(scale, {&from, 1}, scaled.data(), step);
          for (std::int64_t i = 0; i < step; ++i) {
            const T value = scaled[static_cast<std::size_t>(i)];
            if constexpr (sizeof(T) == sizeof(std::int64_t)) {
              reinterpret_cast<std::int64_t*>(to)[done + i] = value >> 32;
              reinterpret_cast<std::int64_t*>(lower)[done + i] = value & 0xffffffff;
            } else {
              const auto wide = static_cast<Wide>(value);  // NOLINT(bugprone-signed-char-misuse)
              reinterpret_cast<Wide*>(to)[done + i] = wide;
            }
          }
        }
      });
    });
  }

  void FinishPiece(std::byte* block, std::int64_t first, std::int64_t count,
                   const ReducePiece& piece) const {
    std::byte* const from = Word(block, first);
    if (is_average_) return FinishIntegers(from, Word(block, count + first), piece);
    if (IsHalf(spec_.dtype)) {
      tensor::Narrow(spec_.dtype, reinterpret_cast<const float*>(from), piece.output,
                     piece.element_count);
    } else {
      std::memcpy(piece.output, from, static_cast<std::size_t>(piece.element_count) * word_bytes());
    }
  }

  void FinishIntegers(const std::byte* from, const std::byte* lower,
                      const ReducePiece& piece) const {
    VisitInteger(spec_.dtype, [&]<typename T>(T) {
      VisitInteger(inner_.dtype, [&]<typename Wide>(Wide) {
        auto* to = static_cast<std::byte*>(piece.output);
        for (std::int64_t i = 0; i < piece.element_count; ++i, to += sizeof(T)) {
          T average;  // towards zero, and at an address that need not be aligned
          if constexpr (sizeof(T) == sizeof(std::int64_t)) {
            const Wide128 sum =
                Wide128{reinterpret_cast<const std::int64_t*>(from)[i]} * 4294967296 +
                reinterpret_cast<const std::int64_t*>(lower)[i];
            average = static_cast<T>(sum / spec_.rank_count);
          } else {
            average = static_cast<T>(reinterpret_cast<const Wide*>(from)[i] / spec_.rank_count);
          }
          std::memcpy(to, &average, sizeof(T));
        }
      });
    });
    if (spec_.postscale == 1.0) return;
    const void* averages = piece.output;
    const ReduceSpec scale{
        .dtype = spec_.dtype, .op = ReduceOp::kSum, .postscale = spec_.postscale};
    tensor::Reduce(scale, {&averages, 1}, piece.output, piece.element_count);
  }

  const ReduceSpec spec_;
  const SumGroups groups_;
  const bool is_average_;  // of integers
  const std::int64_t words_;
  ReduceSpec inner_;
};

Result<std::unique_ptr<std::byte[]>> WideMemory(std::size_t bytes) {
  std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
  if (memory != nullptr) return memory;
  return Status(StatusCode::kResourceExhausted,
                Format("no memory for {} bytes in which a reduction needs a wider type", bytes));
}

}  // namespace

Status AllreduceWidened(Backend& backend, std::span<const ReducePiece> pieces,
                        const ReduceSpec& spec, SumGroups groups) {
  const WideForm form(spec, groups);
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  const std::int64_t elements = CountElements(pieces);
  const std::int64_t most =
      std::min(elements, static_cast<std::int64_t>(kWideBlockBytes / form.bytes_each()));
  HVL_ASSIGN_OR_RETURN(const std::unique_ptr<std::byte[]> block,
                       WideMemory(static_cast<std::size_t>(most) * form.bytes_each()));
  for (std::int64_t begin = 0; begin < elements; begin += most) {
    const std::int64_t count = std::min(most, elements - begin);
    const std::vector<ReducePiece> inside =
        CutOut(pieces, element_bytes, static_cast<std::size_t>(begin) * element_bytes,
               static_cast<std::size_t>(begin + count) * element_bytes);
    form.Widen(inside, block.get(), 0, count);
    const ReducePiece whole{block.get(), block.get(), form.words() * count};
    HVL_RETURN_IF_ERROR(backend.Allreduce({&whole, 1}, form.spec()));
    form.Finish(block.get(), count, inside);
  }
  return Status::Ok();
}

// In turns, each of as many elements of every rank's part.
Status ReducescatterWidened(Backend& backend, int rank, int ranks,
                            std::span<const ScatterPiece> pieces, const ReduceSpec& spec,
                            SumGroups groups) {
  const WideForm form(spec, groups);
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  const auto parts = PartsByOwner(pieces, rank, ranks, element_bytes);
  std::int64_t longest = 0;
  for (const auto& part : parts) longest = std::max(longest, CountElements(part));
  const std::size_t of_all = form.bytes_each() * (parts.size() + 1);  // and the own result
  const std::int64_t most = std::min(
      longest, std::max(static_cast<std::int64_t>(kWideBlockBytes / of_all), std::int64_t{1}));
  HVL_ASSIGN_OR_RETURN(const std::unique_ptr<std::byte[]> memory,
                       WideMemory(static_cast<std::size_t>(most) * of_all));
  for (std::int64_t begin = 0; begin < longest; begin += most) {
    std::vector<std::vector<ReducePiece>> inside;
    std::vector<std::int64_t> counts;
    std::int64_t count = 0;
    for (const auto& part : parts) {
      inside.push_back(CutOut(part, element_bytes, static_cast<std::size_t>(begin) * element_bytes,
                              static_cast<std::size_t>(begin + most) * element_bytes));
      counts.push_back(CountElements(inside.back()));
      count += counts.back();
    }
    std::int64_t first = 0;
    for (std::size_t owner = 0; owner < parts.size(); ++owner) {
      form.Widen(inside[owner], memory.get(), first, count);
      first += counts[owner];
    }
    const std::size_t word_row = static_cast<std::size_t>(count) * form.word_bytes();
    std::byte* const results = memory.get() + word_row * static_cast<std::size_t>(form.words());
    const std::int64_t own_count = counts[static_cast<std::size_t>(rank)];
    std::vector<ScatterPiece> words;
    for (std::int64_t word = 0; word < form.words(); ++word) {
      words.push_back({memory.get() + static_cast<std::size_t>(word) * word_row,
                       results + static_cast<std::size_t>(word * own_count) * form.word_bytes(),
                       counts});
    }
    HVL_RETURN_IF_ERROR(backend.Reducescatter(words, form.spec()));
    form.Finish(results, own_count, inside[static_cast<std::size_t>(rank)]);
  }
  return Status::Ok();
}

}  // namespace hvl::collective
