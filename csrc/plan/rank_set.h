// A set of ranks of one world, and how messages name it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hvl::plan {

class RankSet {
 public:
  RankSet() = default;
  /// Empty; may hold ranks 0 .. size - 1.
  explicit RankSet(int size)
      : size_(size),
        more_(size > kWordBits ? static_cast<std::size_t>((size - 1) / kWordBits) : 0) {}

  bool Contains(int rank) const { return (Word(rank) >> Bit(rank) & 1U) != 0; }
  /// False when it was there already.
  bool Insert(int rank) {
    std::uint64_t& word = Word(rank);
    const std::uint64_t mask = std::uint64_t{1} << Bit(rank);
    if ((word & mask) != 0) return false;
    word |= mask;
    ++count_;
    return true;
  }
  // `others` are of the same world.
  void InsertAll(const RankSet& others);
  void EraseAll(const RankSet& others);
  void Erase(int rank) {
    if (!Contains(rank)) return;
    Word(rank) &= ~(std::uint64_t{1} << Bit(rank));
    --count_;
  }

  int count() const { return count_; }
  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == size_; }
  RankSet Complement() const;
  /// Members smaller than `rank`.
  int CountBelow(int rank) const;
  /// The smallest member, or -1.
  int First() const;
  /// "rank 3", "ranks 0-2, 5", "no rank"; at most some 20 ranges, then "and 12 more".
  std::string ToString() const;

  bool operator==(const RankSet&) const = default;

 private:
  static constexpr int kWordBits = 64;
  static int Bit(int rank) { return rank % kWordBits; }
  const std::uint64_t& Word(int rank) const {
    return rank < kWordBits ? first_ : more_[static_cast<std::size_t>(rank / kWordBits - 1)];
  }
  std::uint64_t& Word(int rank) {
    return rank < kWordBits ? first_ : more_[static_cast<std::size_t>(rank / kWordBits - 1)];
  }

  void Recount();

  int size_ = 0;
  int count_ = 0;
  std::uint64_t first_ = 0;  // ranks 0-63 without a further memory access
  std::vector<std::uint64_t> more_;
};

}  // namespace hvl::plan
