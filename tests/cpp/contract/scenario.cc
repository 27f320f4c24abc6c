#include "tests/cpp/contract/scenario.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "tests/support/reference_reduce.h"

namespace hvl::collective::contract {
namespace {

using test::RandomBetween;
using test::RandomElements;
using test::RandomSpec;
using Bytes = std::vector<std::byte>;
using Buffer = RankMemory::Buffer;

bool ChooseShared(Placement placement, std::mt19937_64& random) {
  if (placement == Placement::kOwn || placement == Placement::kShared) {
    return placement == Placement::kShared;
  }
  return random() % 2 == 0;
}

Bytes RandomBytes(std::size_t bytes, std::mt19937_64& random) {
  return RandomElements(DType::kUint8, static_cast<std::int64_t>(bytes), random);
}

class AllreduceScenario final : public Scenario {
 public:
  AllreduceScenario(World& world, const tensor::ReduceSpec& spec,
                    const std::vector<std::int64_t>& counts, Placement placement,
                    std::mt19937_64& random)
      : Scenario(world.size()),
        spec_(spec),
        group_ends_(world.group_ends),
        counts_(counts),
        buffers_(world.size()) {
    description_ =
        Format("allreduce {} {} pre {} post {} counts {}", DTypeName(spec.dtype),
               ReduceOpName(spec.op), spec.prescale, spec.postscale, ShapeToString(counts));
    for (std::size_t rank = 0; rank < world.size(); ++rank) {
      for (const std::int64_t count : counts) {
        const std::size_t bytes = static_cast<std::size_t>(count) * DTypeBytes(spec.dtype);
        const bool apart = placement == Placement::kOutput;
        const bool input_shared = !apart && ChooseShared(placement, random);
        const Buffer input = memory_[rank].Reserve(input_shared, bytes, random);
        const bool in_place = !apart && random() % 2 == 0;
        const bool output_shared = apart || ChooseShared(placement, random);
        const Buffer output =
            in_place ? input : memory_[rank].Reserve(output_shared, bytes, random);
        buffers_[rank].emplace_back(input, output);
      }
      memory_[rank].Materialise(*world[rank], random);
    }
    for (std::size_t index = 0; index < counts.size(); ++index) Fill(index, random);
  }

  Status Run(Backend& backend, int rank) override {
    std::vector<ReducePiece> pieces;
    const auto r = static_cast<std::size_t>(rank);
    for (std::size_t index = 0; index < counts_.size(); ++index) {
      const auto& [input, output] = buffers_[r][index];
      pieces.push_back({memory_[r].at(input), memory_[r].at(output), counts_[index]});
    }
    return backend.Allreduce(pieces, spec_);
  }

 private:
  void Fill(std::size_t index, std::mt19937_64& random) {
    std::vector<Bytes> inputs;
    std::vector<const void*> pointers;
    for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
      inputs.push_back(RandomElements(spec_.dtype, counts_[index], random));
      memory_[rank].Set(buffers_[rank][index].first, inputs.back());
    }
    for (const Bytes& input : inputs) pointers.push_back(input.data());
    Bytes result(inputs[0].size());
    test::ReferenceReduce(spec_, group_ends_, pointers, result.data(), counts_[index]);
    for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
      memory_[rank].Expect(buffers_[rank][index].second, result);
    }
  }

  const tensor::ReduceSpec spec_;
  const std::vector<int> group_ends_;
  const std::vector<std::int64_t> counts_;
  std::vector<std::vector<std::pair<Buffer, Buffer>>> buffers_;  // by rank, then piece
};

class BroadcastScenario final : public Scenario {
 public:
  BroadcastScenario(World& world, const std::vector<std::size_t>& piece_bytes, int root,
                    Placement placement, std::mt19937_64& random)
      : Scenario(world.size()), root_(root), buffers_(world.size()) {
    description_ = Format("broadcast from {} of {} bytes in {} pieces", root,
                          std::accumulate(piece_bytes.begin(), piece_bytes.end(), std::size_t{0}),
                          piece_bytes.size());
    for (std::size_t rank = 0; rank < world.size(); ++rank) {
      for (const std::size_t bytes : piece_bytes) {
        const Buffer output = memory_[rank].Reserve(ChooseShared(placement, random), bytes, random);
        const bool in_place = random() % 2 == 0;
        const Buffer input =
            in_place ? output
                     : memory_[rank].Reserve(ChooseShared(placement, random), bytes, random);
        buffers_[rank].emplace_back(input, output);
      }
      memory_[rank].Materialise(*world[rank], random);
    }
    for (std::size_t index = 0; index < piece_bytes.size(); ++index) {
      const Bytes content = RandomBytes(piece_bytes[index], random);
      memory_[static_cast<std::size_t>(root)].Set(
          buffers_[static_cast<std::size_t>(root)][index].first, content);
      for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
        memory_[rank].Expect(buffers_[rank][index].second, content);
      }
    }
  }

  Status Run(Backend& backend, int rank) override {
    std::vector<BroadcastPiece> pieces;
    const auto r = static_cast<std::size_t>(rank);
    for (const auto& [input, output] : buffers_[r]) {
      // Ranks other than the root need no input.
      const void* const from =
          rank == root_ || output.bytes % 2 == 0 ? memory_[r].at(input) : nullptr;
      pieces.push_back({from, memory_[r].at(output), output.bytes});
    }
    return backend.Broadcast(pieces, root_);
  }

 private:
  const int root_;
  std::vector<std::vector<std::pair<Buffer, Buffer>>> buffers_;
};

class AllgatherScenario final : public Scenario {
 public:
  AllgatherScenario(World& world, const std::vector<std::vector<std::size_t>>& rank_bytes,
                    Placement placement, std::mt19937_64& random)
      : Scenario(world.size()), rank_bytes_(rank_bytes), buffers_(world.size()) {
    description_ = Format("allgather of {} pieces", rank_bytes.size());
    for (std::size_t rank = 0; rank < world.size(); ++rank) {
      for (const std::vector<std::size_t>& bytes : rank_bytes) {
        const std::size_t total = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
        buffers_[rank].emplace_back(
            memory_[rank].Reserve(ChooseShared(placement, random), bytes[rank], random),
            memory_[rank].Reserve(ChooseShared(placement, random), total, random));
      }
      memory_[rank].Materialise(*world[rank], random);
    }
    for (std::size_t index = 0; index < rank_bytes.size(); ++index) {
      Bytes joined;
      for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
        const Bytes content = RandomBytes(rank_bytes[index][rank], random);
        memory_[rank].Set(buffers_[rank][index].first, content);
        joined.insert(joined.end(), content.begin(), content.end());
      }
      for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
        memory_[rank].Expect(buffers_[rank][index].second, joined);
      }
    }
  }

  Status Run(Backend& backend, int rank) override {
    std::vector<GatherPiece> pieces;
    const auto r = static_cast<std::size_t>(rank);
    for (std::size_t index = 0; index < rank_bytes_.size(); ++index) {
      const auto& [input, output] = buffers_[r][index];
      pieces.push_back({input.bytes == 0 ? nullptr : memory_[r].at(input),
                        output.bytes == 0 ? nullptr : memory_[r].at(output), rank_bytes_[index]});
    }
    return backend.Allgather(pieces);
  }

 private:
  const std::vector<std::vector<std::size_t>> rank_bytes_;
  std::vector<std::vector<std::pair<Buffer, Buffer>>> buffers_;
};

class ReducescatterScenario final : public Scenario {
 public:
  ReducescatterScenario(World& world, const tensor::ReduceSpec& spec,
                        const std::vector<std::vector<std::int64_t>>& rank_elements,
                        Placement placement, std::mt19937_64& random)
      : Scenario(world.size()),
        spec_(spec),
        group_ends_(world.group_ends),
        rank_elements_(rank_elements),
        buffers_(world.size()) {
    description_ = Format("reducescatter {} {} pre {} post {} of", DTypeName(spec.dtype),
                          ReduceOpName(spec.op), spec.prescale, spec.postscale);
    for (const auto& parts : rank_elements) description_ += Format(" {}", ShapeToString(parts));
    for (std::size_t rank = 0; rank < world.size(); ++rank) {
      for (const std::vector<std::int64_t>& parts : rank_elements) {
        const auto total = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
        buffers_[rank].emplace_back(
            memory_[rank].Reserve(ChooseShared(placement, random), BytesOf(total), random),
            memory_[rank].Reserve(ChooseShared(placement, random), BytesOf(parts[rank]), random));
      }
      memory_[rank].Materialise(*world[rank], random);
    }
    for (std::size_t index = 0; index < rank_elements.size(); ++index) Fill(index, random);
  }

  Status Run(Backend& backend, int rank) override {
    std::vector<ScatterPiece> pieces;
    const auto r = static_cast<std::size_t>(rank);
    for (std::size_t index = 0; index < rank_elements_.size(); ++index) {
      const auto& [input, output] = buffers_[r][index];
      pieces.push_back(
          {memory_[r].AtOrNull(input), memory_[r].AtOrNull(output), rank_elements_[index]});
    }
    return backend.Reducescatter(pieces, spec_);
  }

 private:
  std::size_t BytesOf(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * DTypeBytes(spec_.dtype);
  }

  void Fill(std::size_t index, std::mt19937_64& random) {
    const std::vector<std::int64_t>& parts = rank_elements_[index];
    const auto total = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
    std::vector<Bytes> inputs;
    std::vector<const void*> pointers;
    for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
      inputs.push_back(RandomElements(spec_.dtype, total, random));
      memory_[rank].Set(buffers_[rank][index].first, inputs.back());
    }
    for (const Bytes& input : inputs) pointers.push_back(input.data());
    Bytes result(inputs[0].size());
    test::ReferenceReduce(spec_, group_ends_, pointers, result.data(), total);
    auto begin = result.begin();
    for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
      const auto end = begin + static_cast<std::ptrdiff_t>(BytesOf(parts[rank]));
      memory_[rank].Expect(buffers_[rank][index].second, Bytes(begin, end));
      begin = end;
    }
  }

  const tensor::ReduceSpec spec_;
  const std::vector<int> group_ends_;
  const std::vector<std::vector<std::int64_t>> rank_elements_;
  std::vector<std::vector<std::pair<Buffer, Buffer>>> buffers_;  // by rank, then piece
};

class AlltoallScenario final : public Scenario {
 public:
  AlltoallScenario(World& world, const std::vector<std::vector<std::size_t>>& bytes,
                   Placement placement, std::mt19937_64& random)
      : Scenario(world.size()), bytes_(bytes), buffers_(world.size()) {
    description_ = Format("alltoall of {} pieces", bytes.size());
    const std::size_t ranks = world.size();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (const std::vector<std::size_t>& matrix : bytes) {
        std::size_t sent = 0;
        std::size_t received = 0;
        for (std::size_t peer = 0; peer < ranks; ++peer) {
          sent += matrix[rank * ranks + peer];
          received += matrix[peer * ranks + rank];
        }
        buffers_[rank].emplace_back(
            memory_[rank].Reserve(ChooseShared(placement, random), sent, random),
            memory_[rank].Reserve(ChooseShared(placement, random), received, random));
      }
      memory_[rank].Materialise(*world[rank], random);
    }
    for (std::size_t index = 0; index < bytes.size(); ++index) Fill(index, random);
  }

  Status Run(Backend& backend, int rank) override {
    std::vector<ExchangePiece> pieces;
    const auto r = static_cast<std::size_t>(rank);
    for (std::size_t index = 0; index < bytes_.size(); ++index) {
      const auto& [input, output] = buffers_[r][index];
      pieces.push_back({memory_[r].AtOrNull(input), memory_[r].AtOrNull(output), bytes_[index]});
    }
    return backend.Alltoall(pieces);
  }

 private:
  void Fill(std::size_t index, std::mt19937_64& random) {
    const std::size_t ranks = memory_.size();
    std::vector<Bytes> received(ranks);
    for (std::size_t from = 0; from < ranks; ++from) {
      const Bytes content = RandomBytes(buffers_[from][index].first.bytes, random);
      memory_[from].Set(buffers_[from][index].first, content);
      auto begin = content.begin();
      for (std::size_t to = 0; to < ranks; ++to) {
        const auto end = begin + static_cast<std::ptrdiff_t>(bytes_[index][from * ranks + to]);
        received[to].insert(received[to].end(), begin, end);
        begin = end;
      }
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      memory_[rank].Expect(buffers_[rank][index].second, received[rank]);
    }
  }

  const std::vector<std::vector<std::size_t>> bytes_;
  std::vector<std::vector<std::pair<Buffer, Buffer>>> buffers_;
};

class BarrierScenario final : public Scenario {
 public:
  explicit BarrierScenario(World& world) : Scenario(world.size()) { description_ = "barrier"; }
  Status Run(Backend& backend, int) override { return backend.Barrier(); }
};

// std::equal looks at std::bytes one by one, which costs a sanitizer much time.
bool SameBytes(const std::byte* memory, const Bytes& expected) {
  return expected.empty() || std::memcmp(memory, expected.data(), expected.size()) == 0;
}

// Mostly small, as in life; now and then large.
std::int64_t RandomCount(std::mt19937_64& random) {
  constexpr std::array<std::int64_t, 8> kMost = {0, 1, 20, 20, 300, 300, 5000, 40000};
  return RandomBetween(0, kMost[random() % kMost.size()], random);
}

}  // namespace

Buffer RankMemory::Reserve(bool shared, std::size_t bytes, std::mt19937_64& random) {
  std::size_t& used = used_[shared ? 1 : 0];
  if (random() % 3 == 0) used += random() % 100;
  const Buffer buffer{.shared = shared, .offset = used, .bytes = bytes};
  used += bytes;
  return buffer;
}

void RankMemory::Materialise(Backend& backend, std::mt19937_64& random) {
  for (const bool shared : {false, true}) {
    const std::size_t bytes = used_[shared ? 1 : 0] + 64;
    if (shared) {
      Result<SharedBuffer> buffer = backend.Allocate(bytes);
      if (buffer.ok()) {
        allocated_ = *buffer;
      } else {
        HVL_CHECK(buffer.status().code() == StatusCode::kNotSupported, buffer.status().ToString());
      }
    }
    const Bytes content = RandomBytes(bytes, random);
    own_[shared ? 1 : 0] = content;
    expected_[shared ? 1 : 0] = content;
    std::memcpy(pool(shared), content.data(), bytes);
  }
}

void RankMemory::Set(const Buffer& buffer, const Bytes& content) {
  if (!content.empty()) std::memcpy(at(buffer), content.data(), content.size());
  Expect(buffer, content);
}

void RankMemory::Expect(const Buffer& buffer, const Bytes& content) {
  Bytes& image = expected_[buffer.shared ? 1 : 0];
  if (!content.empty()) std::memcpy(image.data() + buffer.offset, content.data(), content.size());
}

bool RankMemory::AsExpected() const {
  const std::byte* const shared =
      allocated_.data != nullptr ? static_cast<const std::byte*>(allocated_.data) : own_[1].data();
  return SameBytes(own_[0].data(), expected_[0]) && SameBytes(shared, expected_[1]);
}

bool Scenario::AsExpected() const { return std::ranges::all_of(memory_, &RankMemory::AsExpected); }

std::unique_ptr<Scenario> MakeAllreduce(World& world, const tensor::ReduceSpec& spec,
                                        const std::vector<std::int64_t>& counts,
                                        Placement placement, std::mt19937_64& random) {
  return std::make_unique<AllreduceScenario>(world, spec, counts, placement, random);
}

std::unique_ptr<Scenario> MakeBroadcast(World& world, const std::vector<std::size_t>& piece_bytes,
                                        int root, Placement placement, std::mt19937_64& random) {
  return std::make_unique<BroadcastScenario>(world, piece_bytes, root, placement, random);
}

std::unique_ptr<Scenario> MakeAllgather(World& world,
                                        const std::vector<std::vector<std::size_t>>& rank_bytes,
                                        Placement placement, std::mt19937_64& random) {
  return std::make_unique<AllgatherScenario>(world, rank_bytes, placement, random);
}

std::unique_ptr<Scenario> MakeBarrier(World& world) {
  return std::make_unique<BarrierScenario>(world);
}

std::unique_ptr<Scenario> MakeReducescatter(
    World& world, const tensor::ReduceSpec& spec,
    const std::vector<std::vector<std::int64_t>>& rank_elements, Placement placement,
    std::mt19937_64& random) {
  return std::make_unique<ReducescatterScenario>(world, spec, rank_elements, placement, random);
}

std::unique_ptr<Scenario> MakeAlltoall(World& world,
                                       const std::vector<std::vector<std::size_t>>& bytes,
                                       Placement placement, std::mt19937_64& random) {
  return std::make_unique<AlltoallScenario>(world, bytes, placement, random);
}

std::unique_ptr<Scenario> MakeRandom(World& world, std::mt19937_64& random) {
  const auto ranks = static_cast<int>(world.size());
  const auto placement = static_cast<Placement>(random() % 4);
  const std::size_t pieces = random() % 10 == 0 ? 1 + random() % 100 : 1 + random() % 4;
  // For each piece as many sizes as the operation has.
  const auto sizes = [pieces, &random]<typename Size>(std::size_t each, Size) {
    std::vector<std::vector<Size>> all(pieces, std::vector<Size>(each));
    for (std::vector<Size>& one : all) {
      std::ranges::generate(one, [&random] { return static_cast<Size>(RandomCount(random)); });
    }
    return all;
  };
  const auto kind = random() % 14;
  if (kind < 6) {
    std::vector<std::int64_t> counts(pieces);
    std::ranges::generate(counts, [&random] { return RandomCount(random); });
    return MakeAllreduce(world, RandomSpec(ranks, random), counts, placement, random);
  }
  if (kind < 8) {
    std::vector<std::size_t> bytes(pieces);
    std::ranges::generate(bytes,
                          [&random] { return static_cast<std::size_t>(RandomCount(random)); });
    const int root = static_cast<int>(RandomBetween(0, ranks - 1, random));
    return MakeBroadcast(world, bytes, root, placement, random);
  }
  if (kind == 8) return MakeBarrier(world);
  if (kind == 9) return MakeAllgather(world, sizes(world.size(), std::size_t{}), placement, random);
  if (kind < 12) {
    return MakeReducescatter(world, RandomSpec(ranks, random), sizes(world.size(), std::int64_t{}),
                             placement, random);
  }
  return MakeAlltoall(world, sizes(world.size() * world.size(), std::size_t{}), placement, random);
}

}  // namespace hvl::collective::contract
