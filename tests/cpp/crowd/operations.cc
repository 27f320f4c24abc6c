#include "tests/cpp/crowd/operations.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "csrc/base/str.h"

namespace hvl::test {
namespace {

// Small whole numbers, so that every type holds the sums of 64 ranks exactly: bfloat16 holds those
// up to 256.
int ValueOf(int rank, std::int64_t index, int number) {
  return rank % 2 + static_cast<int>((index + number) % 3);
}
int SumOf(int ranks, std::int64_t index, int number) {
  return ranks / 2 + ranks * static_cast<int>((index + number) % 3);
}

// Mostly small, as in life; now and then what goes in chunks.
std::int64_t CountOf(int number) {
  constexpr std::int64_t kCounts[] = {1, 100, 64, 3000, 7, 500, 1, 20'000};
  return number % 97 == 96 ? 300'000 : kCounts[static_cast<std::size_t>(number / 11) % 8];
}

template <typename T>
struct Number {
  static T From(int value) { return static_cast<T>(value); }
};
struct Bfloat16 {
  std::uint16_t bits;
  bool operator==(const Bfloat16&) const = default;
};
template <>
struct Number<Bfloat16> {
  static Bfloat16 From(int value) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    return {static_cast<std::uint16_t>(bits >> 16)};
  }
};

class Submitted : public CrowdOperation {
 public:
  Status Submit(Session& session) override {
    if (!takes_part_) return Status::Ok();
    HVL_ASSIGN_OR_RETURN(handle_, session.Submit(operation_));
    return Status::Ok();
  }
  std::string Check() override {
    if (!takes_part_) return {};
    const Status status = handle_.Wait();
    const bool right = status.ok() && IsRight();
    return right ? "" : Format("{}: {}", operation_.name, status.ok() ? "wrong" : status.message());
  }

 protected:
  Submitted(OpKind kind, const char* what, int number, const World& world)
      : number_(number), world_(world) {
    operation_.kind = kind;
    operation_.name = Format("{}.{}", what, number);
  }

  const GatheredTensor& result() const { return handle_.gathered().front(); }

  const int number_;
  const World world_;
  Operation operation_;
  bool takes_part_ = true;

 private:
  virtual bool IsRight() const = 0;

  Handle handle_;
};

class Barrier final : public Submitted {
 public:
  Barrier(int number, const World& world) : Submitted(OpKind::kBarrier, "barrier", number, world) {}

 private:
  bool IsRight() const override { return true; }
};

// A reduction in place of all ranks.
template <typename T>
class Allreduce final : public Submitted {
 public:
  Allreduce(DType dtype, ReduceOp op, double prescale, int number, const World& world)
      : Submitted(OpKind::kAllreduce, "allreduce", number, world) {
    for (std::int64_t i = 0; i < CountOf(number); ++i) {
      values_.push_back(Number<T>::From(ValueOf(world.rank, i, number)));
    }
    operation_.reduce_op = op;
    operation_.prescale = prescale;
    operation_.tensors = {{values_.data(), values_.data(), dtype, {CountOf(number)}}};
  }

 private:
  bool IsRight() const override {
    for (std::int64_t i = 0; i < CountOf(number_); ++i) {
      int expected = SumOf(world_.size, i, number_);
      if (operation_.reduce_op == ReduceOp::kMax) expected = ValueOf(1, i, number_);
      expected *= static_cast<int>(operation_.prescale);
      if (operation_.reduce_op == ReduceOp::kAverage) expected /= world_.size;
      if (values_[static_cast<std::size_t>(i)] != Number<T>::From(expected)) return false;
    }
    return true;
  }

  std::vector<T> values_;
};

// A sum of every second rank.
class SetAllreduce final : public Submitted {
 public:
  SetAllreduce(int number, const World& world, ProcessSetId even_ranks)
      : Submitted(OpKind::kAllreduce, "allreduce_in_set", number, world),
        values_(static_cast<std::size_t>(CountOf(number)), static_cast<float>(world.rank)) {
    takes_part_ = world.rank % 2 == 0;
    operation_.reduce_op = ReduceOp::kSum;
    operation_.process_set = even_ranks;
    operation_.tensors = {{values_.data(), values_.data(), DType::kFloat32, {CountOf(number)}}};
  }

 private:
  bool IsRight() const override {
    const int members = (world_.size + 1) / 2;
    for (const float value : values_) {
      if (value != static_cast<float>(members * (members - 1))) return false;
    }
    return true;
  }

  std::vector<float> values_;
};

class Broadcast final : public Submitted {
 public:
  Broadcast(int number, const World& world)
      : Submitted(OpKind::kBroadcast, "broadcast", number, world),
        values_(static_cast<std::size_t>(CountOf(number)), world.rank) {
    operation_.root_rank = number % world.size;
    operation_.tensors = {{values_.data(), values_.data(), DType::kInt32, {CountOf(number)}}};
  }

 private:
  bool IsRight() const override {
    return values_ == std::vector(values_.size(), operation_.root_rank);
  }

  std::vector<std::int32_t> values_;
};

// From one rank to another.
class Transfer final : public Submitted {
 public:
  Transfer(int number, const World& world)
      : Submitted(OpKind::kBroadcast, "transfer", number, world),
        from_(number % world.size),
        values_(static_cast<std::size_t>(CountOf(number)), world.rank) {
    const int to = (from_ + 1 + number % (world.size - 1)) % world.size;
    takes_part_ = world.rank == from_ || world.rank == to;
    operation_.root_rank = from_;
    operation_.process_set = PairSet({from_, to});
    operation_.tensors = {{values_.data(), values_.data(), DType::kInt32, {CountOf(number)}}};
  }

 private:
  bool IsRight() const override { return values_ == std::vector(values_.size(), from_); }

  const int from_;
  std::vector<std::int32_t> values_;
};

// Rank r has (r + number) % 4 rows.
class Allgather final : public Submitted {
 public:
  Allgather(int number, const World& world)
      : Submitted(OpKind::kAllgather, "allgather", number, world),
        rows_(Rows(world.rank)),
        values_(static_cast<std::size_t>(rows_ * kColumns), world.rank) {
    operation_.tensors = {{values_.data(), nullptr, DType::kInt32, {rows_, kColumns}}};
  }

 private:
  static constexpr std::int64_t kColumns = 50;
  std::int64_t Rows(int rank) const { return (rank + number_) % 4; }

  bool IsRight() const override {
    const auto* value = static_cast<const std::int32_t*>(result().data);
    for (int rank = 0; rank < world_.size; ++rank) {
      for (std::int64_t i = 0; i < Rows(rank) * kColumns; ++i) {
        if (*value++ != rank) return false;
      }
    }
    return true;
  }

  const std::int64_t rows_;
  std::vector<std::int32_t> values_;
};

class Reducescatter final : public Submitted {
 public:
  Reducescatter(int number, const World& world)
      : Submitted(OpKind::kReducescatter, "reducescatter", number, world),
        each_(CountOf(number) / 8 + 1) {
    for (std::int64_t i = 0; i < each_ * world.size; ++i) {
      values_.push_back(static_cast<float>(ValueOf(world.rank, i, number)));
    }
    operation_.reduce_op = ReduceOp::kSum;
    operation_.tensors = {{values_.data(), nullptr, DType::kFloat32, {std::ssize(values_)}}};
  }

 private:
  bool IsRight() const override {
    const auto* value = static_cast<const float*>(result().data);
    for (std::int64_t i = 0; i < each_; ++i) {
      const int expected = SumOf(world_.size, i + each_ * world_.rank, number_);
      if (value[i] != static_cast<float>(expected)) return false;
    }
    return result().shape == Shape{each_};
  }

  const std::int64_t each_;
  std::vector<float> values_;
};

// Rank i has (i + j + number) % 3 * scale rows for rank j.
class Alltoall final : public Submitted {
 public:
  Alltoall(int number, const World& world)
      : Submitted(OpKind::kAlltoall, "alltoall", number, world), scale_(CountOf(number) / 40 + 1) {
    for (int to = 0; to < world.size; ++to) {
      operation_.splits.push_back(Rows(world.rank, to));
      values_.insert(values_.end(), static_cast<std::size_t>(Rows(world.rank, to)),
                     world.rank * 1000 + to);
    }
    operation_.tensors = {{values_.data(), nullptr, DType::kInt32, {std::ssize(values_)}}};
  }

 private:
  std::int64_t Rows(int from, int to) const { return (from + to + number_) % 3 * scale_; }

  bool IsRight() const override {
    const auto* value = static_cast<const std::int32_t*>(result().data);
    for (int from = 0; from < world_.size; ++from) {
      for (std::int64_t i = 0; i < Rows(from, world_.rank); ++i) {
        if (*value++ != from * 1000 + world_.rank) return false;
      }
    }
    return true;
  }

  const std::int64_t scale_;
  std::vector<std::int32_t> values_;
};

}  // namespace

std::unique_ptr<CrowdOperation> MakeCrowdOperation(int number, const World& world,
                                                   ProcessSetId even_ranks) {
  switch (number % 11) {
    case 0:
      return std::make_unique<Allreduce<float>>(DType::kFloat32, ReduceOp::kSum, 1.0, number,
                                                world);
    case 1:
      return std::make_unique<Allreduce<Bfloat16>>(DType::kBfloat16, ReduceOp::kSum, 1.0, number,
                                                   world);
    case 2:
      return std::make_unique<Allreduce<std::int32_t>>(DType::kInt32, ReduceOp::kAverage, 1.0,
                                                       number, world);
    case 3:
      return std::make_unique<Allreduce<double>>(DType::kFloat64, ReduceOp::kSum, 2.0, number,
                                                 world);
    case 4:
      return std::make_unique<Allreduce<std::int64_t>>(DType::kInt64, ReduceOp::kMax, 1.0, number,
                                                       world);
    case 5:
      return std::make_unique<SetAllreduce>(number, world, even_ranks);
    case 6:
      return std::make_unique<Broadcast>(number, world);
    case 7:
      return std::make_unique<Allgather>(number, world);
    case 8:
      return std::make_unique<Reducescatter>(number, world);
    case 9:
      return std::make_unique<Alltoall>(number, world);
    default:
      break;
  }
  if (number % 2 == 0) return std::make_unique<Barrier>(number, world);
  return std::make_unique<Transfer>(number, world);
}

}  // namespace hvl::test
