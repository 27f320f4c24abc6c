// Random valid control messages, for round trips and as seeds for fuzzing.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "csrc/wire/messages.h"

namespace hvl::test {

/// All numbers of its messages are drawn so that small ones are frequent and large ones occur.
class RandomMessages {
 public:
  explicit RandomMessages(std::uint64_t seed) : random_(seed) {}

  wire::Announce Announce() {
    wire::Announce message;
    message.generation = Number(64);
    message.epoch = static_cast<std::uint32_t>(Number(32));
    message.acknowledged = Number(64);
    std::uint32_t next = static_cast<std::uint32_t>(Number(12));
    for (std::uint64_t i = Below(6); i > 0; --i) {
      const auto count = static_cast<std::uint32_t>(1 + Number(6));
      message.known.push_back({next, count});
      next += count + 1 + static_cast<std::uint32_t>(Number(4));
    }
    message.known_first_dims = Dims(5);
    for (std::uint64_t i = Below(4); i > 0; --i) message.fresh.push_back(Fresh());
    if (Below(3) == 0) message.blocked = wire::Blocked{Name(), Set(), Below(2) == 0};
    return message;
  }

  wire::Decide Decide() {
    wire::Decide message;
    message.generation = Number(64);
    message.number = Number(64);
    message.first_sequence = Number(64);
    for (std::uint64_t i = Below(4); i > 0; --i) message.batches.push_back(Batch());
    for (std::uint64_t i = Below(3); i > 0; --i) {
      message.failures.push_back({Below(3) == 0 ? "" : Name(), Error(), Set()});
    }
    message.starts_epoch = Below(2) == 0;
    if (Below(3) == 0) {
      message.freeze = wire::Freeze{Plan(), {}, random_()};
      for (std::uint64_t i = Below(4); i > 0; --i) {
        wire::Bucket& bucket = message.freeze->buckets.emplace_back();
        for (std::uint64_t j = 1 + Below(3); j > 0; --j) bucket.batches.push_back(Batch());
      }
    }
    if (Below(3) == 0) message.stop = Plan();
    if (Below(3) == 0) {
      message.thaw = wire::Thaw{Plan(), Number(64), static_cast<int>(Number(31)), Reason()};
    }
    if (Below(3) == 0) {
      message.departure = {static_cast<int>(Number(31)), Number(64)};
    }
    return message;
  }

  wire::Bye Bye() {
    return {Number(64), Number(64), Number(64), Below(2) == 0 ? Status::Ok() : Error()};
  }
  wire::Stopped Stopped() { return {Number(64), Plan(), Number(64), Reason()}; }

  std::uint64_t Below(std::uint64_t limit) { return random_() % limit; }

 private:
  /// Fewer than `bits` bits, any magnitude equally likely.
  std::uint64_t Number(int bits) {
    const auto size = static_cast<int>(Below(static_cast<std::uint64_t>(bits)));
    return size == 0 ? 0 : random_() >> (64 - size);
  }
  std::vector<std::int64_t> Dims(std::uint64_t most) {
    std::vector<std::int64_t> dims(Below(most));
    for (std::int64_t& dim : dims) dim = static_cast<std::int64_t>(Number(63));
    return dims;
  }
  std::uint32_t Plan() { return static_cast<std::uint32_t>(Number(32)); }
  wire::ThawReason Reason() { return static_cast<wire::ThawReason>(Below(wire::kThawReasons)); }
  ProcessSetId Set() { return static_cast<ProcessSetId>(Below(3) == 0 ? Number(32) : 0); }
  std::string Name() {
    static constexpr const char* kParts[] = {"layer", ".", "weight", "ü", "名", "0", "🙂", "\n"};
    std::string name;
    for (std::uint64_t i = 1 + Below(6); i > 0; --i) name += kParts[Below(std::size(kParts))];
    return name;
  }
  Status Error() {
    return {static_cast<StatusCode>(1 + Below(8)), Below(5) == 0 ? "" : Name(),
            static_cast<int>(Below(20)) - 1};
  }
  wire::Signature Signature() {
    wire::Signature signature;
    signature.kind = static_cast<OpKind>(Below(8));
    signature.name = Name();
    if (signature.kind != OpKind::kJoin) signature.process_set = Set();
    if (signature.kind == OpKind::kProcessSet) {
      signature.process_set |= 1;
      auto next = static_cast<std::int32_t>(Number(20));
      for (std::uint64_t i = Below(5); i > 0; --i) {
        signature.ranks.push_back(next);
        next += 1 + static_cast<std::int32_t>(Number(20));
      }
    }
    signature.reduce_op = static_cast<ReduceOp>(Below(6));
    if (Below(3) == 0) signature.prescale = -0.1;
    if (Below(3) == 0) signature.postscale = 1e300;
    signature.root_rank = static_cast<std::int32_t>(random_());
    if (!wire::HasTensors(signature.kind)) return signature;
    for (std::uint64_t i = 1 + Below(3); i > 0; --i) {
      signature.tensors.push_back(
          {static_cast<DType>(Below(10)), static_cast<Layout>(Number(32)), Dims(5)});
    }
    return signature;
  }
  wire::Fresh Fresh() {
    wire::Fresh fresh{Signature(), {}, Below(2) == 0, Below(3) == 0 ? Name() : ""};
    std::size_t dims = fresh.signature.tensors.size();
    if (fresh.signature.kind == OpKind::kAlltoall) {
      dims *= 1 + Below(4);
    } else if (fresh.signature.kind != OpKind::kAllgather) {
      return fresh;
    }
    for (std::size_t i = 0; i < dims; ++i) {
      fresh.first_dims.push_back(static_cast<std::int64_t>(Number(63)));
    }
    return fresh;
  }
  wire::DecidedBatch Batch() {
    wire::DecidedBatch batch;
    for (std::uint64_t i = 1 + Below(4); i > 0; --i) batch.members.push_back(Member());
    batch.first_dims = Dims(4);
    batch.process_set = Set();
    return batch;
  }
  wire::Member Member() {
    wire::Member member;
    const auto id = static_cast<std::uint32_t>(Number(23));
    if (Below(2) == 0) {
      member.name = Name();
      if (Below(2) == 0) member.id = id;
      if (Below(3) == 0) {
        member.signature = Signature();
        member.name = member.signature->name;
      }
    } else {
      member.id = id;
      if (Below(2) == 0) member.count = static_cast<std::uint32_t>(1 + Number(10));
    }
    if (member.count == 1 && Below(3) == 0) {
      member.range = {static_cast<std::uint32_t>(Number(32)),
                      static_cast<std::uint32_t>(Number(32))};
    }
    return member;
  }

  std::mt19937_64 random_;
};

}  // namespace hvl::test
