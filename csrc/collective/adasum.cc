#include "csrc/collective/adasum.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/tensor/float_mode.h"

// S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020, arXiv:2006.02924.
// Two gradients a and b of the same loss become
//
//   (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b:
//
// their sum when they are orthogonal, their mean when they are equal. More than two are combined in
// a tree: neighbours first, then the results of neighbours; without a partner a vector passes a
// level as it is.
//
// Terms: N ranks, K bytes in all tensors. Each tensor is cut into N slices, its *rows* are the
// ranks' vectors. Where the paper halves vectors and doubles distances, here
//   1. an alltoall brings slice r of every row to rank r: (N-1) K / N bytes per rank;
//   2. per level, each rank computes its share of the dot products of all pairs of rows, a small
//      allreduce adds the shares up (24 bytes per pair and tensor), and each rank combines its
//      slices: about 2 K bytes read for all levels together;
//   3. an allgather brings the slices of the last row together: (N-1) K / N bytes per rank.
// As many bytes as an allreduce and ceil(log2 N) + 2 steps, for any N.

namespace hvl::collective {
namespace {

// Below, the square of a norm says nothing any more; such a vector counts as zero. Then the other
// one is added unchanged.
const double kLeastSquare = std::sqrt(std::numeric_limits<double>::min());

struct Products {
  double ab = 0;
  double aa = 0;
  double bb = 0;
};

// In so many independent sums that additions overlap and vectorise; always the same ones, so that
// the order of additions depends on the count alone.
template <typename Real>
Products Multiply(std::span<const Real> a, std::span<const Real> b) {
  constexpr std::size_t kLanes = 8;
  std::array<Products, kLanes> lanes{};
  const auto add = [a, b](Products& lane, std::size_t index) {
    const auto x = static_cast<double>(a[index]);
    const auto y = static_cast<double>(b[index]);
    lane.ab += x * y;
    lane.aa += x * x;
    lane.bb += y * y;
  };
  std::size_t index = 0;
  for (; index + kLanes <= a.size(); index += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(lanes[lane], index + lane);
  }
  for (; index < a.size(); ++index) add(lanes[0], index);
  Products sum;
  for (const Products& lane : lanes) {
    sum.ab += lane.ab;
    sum.aa += lane.aa;
    sum.bb += lane.bb;
  }
  return sum;
}

template <typename Real>
void Combine(const Products& products, std::span<Real> a, std::span<const Real> b) {
  const auto factor = [&products](double square) {
    return static_cast<Real>(square >= kLeastSquare ? 1 - products.ab / (2 * square) : 1.0);
  };
  const Real of_a = factor(products.aa);
  const Real of_b = factor(products.bb);
  for (std::size_t index = 0; index < a.size(); ++index) {
    a[index] = of_a * a[index] + of_b * b[index];
  }
}

template <typename Real>
void Scale(std::span<Real> values, double factor) {
  if (factor == 1.0) return;
  for (Real& value : values) value *= static_cast<Real>(factor);
}

Status NoMemory(std::size_t bytes) {
  return {StatusCode::kResourceExhausted,
          Format("no memory for {} bytes that an Adasum needs beside its tensors", bytes)};
}

// `Real` is what it computes in.
template <typename Real>
class Adasum {
 public:
  Adasum(Backend& backend, int rank, int ranks, std::span<const ReducePiece> pieces, DType dtype)
      : backend_(backend),
        rank_(static_cast<std::size_t>(rank)),
        ranks_(static_cast<std::size_t>(ranks)),
        dtype_(dtype) {
    std::size_t values = 0;
    for (const ReducePiece& piece : pieces) {
      const std::size_t begin = SliceBegin(piece, rank_);
      const std::size_t count = SliceBegin(piece, rank_ + 1) - begin;
      tensors_.push_back({piece, begin, count, values});
      values += count * ranks_;
    }
    values_count_ = values;
  }

  Status Run(double prescale, double postscale) {
    const tensor::DefaultFloatMode mode;
    values_.reset(new (std::nothrow) Real[values_count_]);
    if (values_ == nullptr) return NoMemory(values_count_ * sizeof(Real));
    HVL_RETURN_IF_ERROR(Collect());
    Scale(std::span(values_.get(), values_count_), prescale);
    std::vector<std::size_t> rows(ranks_);
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    while (rows.size() > 1) HVL_RETURN_IF_ERROR(CombineNeighbours(rows));
    return Publish(postscale);
  }

 private:
  // This rank's slice of a tensor.
  struct Slice {
    ReducePiece piece;
    std::size_t begin;   // in the tensor, in elements
    std::size_t count;   // of elements
    std::size_t values;  // where its rows begin in values_
  };

  std::size_t SliceBegin(const ReducePiece& piece, std::size_t rank) const {
    const auto elements = static_cast<std::size_t>(piece.element_count);
    // elements * rank / ranks without the overflow of the product
    return elements / ranks_ * rank + elements % ranks_ * rank / ranks_;
  }
  std::span<Real> Row(const Slice& slice, std::size_t row) const {
    return {values_.get() + slice.values + row * slice.count, slice.count};
  }
  std::size_t element_bytes() const { return DTypeBytes(dtype_); }

  // For each pair of ranks, the bytes of the slice that goes from one to the other.
  std::span<const std::size_t> SliceBytes(const ReducePiece& piece) {
    std::vector<std::size_t>& bytes = slice_bytes_[piece.element_count];
    if (!bytes.empty()) return bytes;
    for (std::size_t from = 0; from < ranks_; ++from) {
      for (std::size_t to = 0; to < ranks_; ++to) {
        const std::size_t count = SliceBegin(piece, to + 1) - SliceBegin(piece, to);
        bytes.push_back(count * element_bytes());
      }
    }
    return bytes;
  }

  Status Collect() {
    // Elements of the type that it computes in need no place of their own.
    const bool is_wide = sizeof(Real) == element_bytes();
    std::unique_ptr<std::byte[]> narrow;
    if (!is_wide) {
      narrow.reset(new (std::nothrow) std::byte[values_count_ * element_bytes()]);
      if (narrow == nullptr) return NoMemory(values_count_ * element_bytes());
    }
    std::byte* const collected =
        is_wide ? reinterpret_cast<std::byte*>(values_.get()) : narrow.get();
    std::vector<ExchangePiece> pieces;
    for (const Slice& slice : tensors_) {
      pieces.push_back(
          {slice.piece.input, collected + slice.values * element_bytes(), SliceBytes(slice.piece)});
    }
    HVL_RETURN_IF_ERROR(backend_.Alltoall(pieces));
    if constexpr (std::is_same_v<Real, float>) {
      if (!is_wide) {
        tensor::Widen(dtype_, collected, values_.get(), static_cast<std::int64_t>(values_count_));
      }
    }
    return Status::Ok();
  }

  Status CombineNeighbours(std::vector<std::size_t>& rows) {
    const std::size_t pairs = rows.size() / 2;
    std::vector<Products> products;  // by pair, then tensor
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      for (const Slice& slice : tensors_) {
        products.push_back(
            Multiply<Real>(Row(slice, rows[2 * pair]), Row(slice, rows[2 * pair + 1])));
      }
    }
    static_assert(sizeof(Products) == 3 * sizeof(double));
    const ReducePiece sums{products.data(), products.data(),
                           static_cast<std::int64_t>(3 * products.size())};
    HVL_RETURN_IF_ERROR(backend_.Allreduce(
        {&sums, 1},
        {.dtype = DType::kFloat64, .op = ReduceOp::kSum, .rank_count = static_cast<int>(ranks_)}));
    const Products* next = products.data();
    std::vector<std::size_t> results;
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      for (const Slice& slice : tensors_) {
        Combine<Real>(*next++, Row(slice, rows[2 * pair]), Row(slice, rows[2 * pair + 1]));
      }
      results.push_back(rows[2 * pair]);
    }
    if (rows.size() % 2 != 0) results.push_back(rows.back());
    rows = std::move(results);
    return Status::Ok();
  }

  // The result is row 0.
  Status Publish(double postscale) {
    std::vector<GatherPiece> pieces;
    for (const Slice& slice : tensors_) {
      const std::span<Real> result = Row(slice, 0);
      Scale(result, postscale);
      std::byte* const place =
          static_cast<std::byte*>(slice.piece.output) + slice.begin * element_bytes();
      if constexpr (std::is_same_v<Real, float>) {
        tensor::Narrow(dtype_, result.data(), place, static_cast<std::int64_t>(slice.count));
      } else {
        if (slice.count > 0) std::memcpy(place, result.data(), result.size_bytes());
      }
      pieces.push_back({place, slice.piece.output, SliceBytes(slice.piece).first(ranks_)});
    }
    return backend_.Allgather(pieces);
  }

  Backend& backend_;
  const std::size_t rank_;
  const std::size_t ranks_;
  const DType dtype_;
  std::vector<Slice> tensors_;
  std::size_t values_count_ = 0;
  std::unique_ptr<Real[]> values_;  // per tensor: the slice of row 0, of row 1, ..
  std::map<std::int64_t, std::vector<std::size_t>> slice_bytes_;  // by elements of the tensor
};

}  // namespace

Status AdasumAllreduce(Backend& backend, int rank, int ranks, std::span<const ReducePiece> pieces,
                       DType dtype, double prescale, double postscale) {
  HVL_RETURN_IF_ERROR(tensor::CheckReduction({.dtype = dtype,
                                              .op = ReduceOp::kAdasum,
                                              .prescale = prescale,
                                              .postscale = postscale,
                                              .rank_count = ranks}));
  if (dtype == DType::kFloat64) {
    return Adasum<double>(backend, rank, ranks, pieces, dtype).Run(prescale, postscale);
  }
  return Adasum<float>(backend, rank, ranks, pieces, dtype).Run(prescale, postscale);
}

}  // namespace hvl::collective
