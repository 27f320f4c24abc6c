// One collective operation with all its memory, on all ranks, and the image of that memory that the
// oracle expects afterwards.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/collective/backend.h"
#include "tests/cpp/contract/world.h"

namespace hvl::collective::contract {

/// Where a test puts memory.
enum class Placement : std::uint8_t {
  kOwn,     ///< ordinary memory on every rank
  kShared,  ///< memory from Allocate on every rank
  kMixed,   ///< either, by chance, per rank and piece
  kOutput,  ///< of allreduces: inputs in ordinary memory, outputs from Allocate (others: kMixed)
};

/// The memory of one rank: a pool of ordinary and a pool of allocated bytes, in which buffers lie
/// at odd addresses, now adjacent, now with gaps.
class RankMemory {
 public:
  struct Buffer {
    bool shared = false;
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  Buffer Reserve(bool shared, std::size_t bytes, std::mt19937_64& random);
  /// After all Reserve calls: gets the memory and fills it with random bytes.
  void Materialise(Backend& backend, std::mt19937_64& random);

  std::byte* at(const Buffer& buffer) { return pool(buffer.shared) + buffer.offset; }
  std::byte* AtOrNull(const Buffer& buffer) { return buffer.bytes == 0 ? nullptr : at(buffer); }
  /// Puts bytes into the memory, and into what is expected there.
  void Set(const Buffer& buffer, const std::vector<std::byte>& content);
  /// Says that the operation should write these bytes.
  void Expect(const Buffer& buffer, const std::vector<std::byte>& content);
  /// True if every byte, of buffers and gaps, is what was expected.
  bool AsExpected() const;

 private:
  std::byte* pool(bool shared) {
    return shared && allocated_.data != nullptr ? static_cast<std::byte*>(allocated_.data)
                                                : own_[shared ? 1 : 0].data();
  }
  std::size_t used_[2] = {0, 0};
  std::vector<std::byte> own_[2];  ///< [1]: when the backend has no shared memory
  SharedBuffer allocated_;
  std::vector<std::byte> expected_[2];
};

/// A prepared operation. Run is called once on every rank, each on its own thread.
class Scenario {
 public:
  virtual ~Scenario() = default;
  virtual Status Run(Backend& backend, int rank) = 0;
  bool AsExpected() const;
  /// The memory of one rank, where the others are other processes.
  bool AsExpected(int rank) const { return memory_[static_cast<std::size_t>(rank)].AsExpected(); }
  const std::string& description() const { return description_; }

 protected:
  explicit Scenario(std::size_t ranks) : memory_(ranks) {}
  std::vector<RankMemory> memory_;  ///< by rank
  std::string description_;
};

std::unique_ptr<Scenario> MakeAllreduce(World& world, const tensor::ReduceSpec& spec,
                                        const std::vector<std::int64_t>& counts,
                                        Placement placement, std::mt19937_64& random);
std::unique_ptr<Scenario> MakeBroadcast(World& world, const std::vector<std::size_t>& piece_bytes,
                                        int root, Placement placement, std::mt19937_64& random);
/// `rank_bytes`: for each piece, the contribution of each rank.
std::unique_ptr<Scenario> MakeAllgather(World& world,
                                        const std::vector<std::vector<std::size_t>>& rank_bytes,
                                        Placement placement, std::mt19937_64& random);
std::unique_ptr<Scenario> MakeBarrier(World& world);
/// `rank_elements`: for each piece, the part of each rank.
std::unique_ptr<Scenario> MakeReducescatter(
    World& world, const tensor::ReduceSpec& spec,
    const std::vector<std::vector<std::int64_t>>& rank_elements, Placement placement,
    std::mt19937_64& random);
/// `bytes`: for each piece, what rank i has for rank j at [i * ranks + j].
std::unique_ptr<Scenario> MakeAlltoall(World& world,
                                       const std::vector<std::vector<std::size_t>>& bytes,
                                       Placement placement, std::mt19937_64& random);

/// Any of the above, with any sizes.
std::unique_ptr<Scenario> MakeRandom(World& world, std::mt19937_64& random);

}  // namespace hvl::collective::contract
