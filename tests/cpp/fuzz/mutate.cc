#include "tests/cpp/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>

namespace hvl::fuzz {
namespace {

class Mutator {
 public:
  Mutator(const std::vector<Input>& corpus, std::uint64_t seed) : corpus_(corpus), random_(seed) {}

  Input Make() {
    Input input = Pick();
    // Mostly few changes: the more of them, the earlier a parser gives up.
    static constexpr std::array<std::size_t, 8> kCounts = {0, 1, 1, 1, 2, 3, 6, 20};
    for (std::size_t i = kCounts[Below(kCounts.size())]; i > 0; --i) Change(input);
    return input;
  }

 private:
  std::size_t Below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
  const Input& Pick() { return corpus_[Below(corpus_.size())]; }
  std::byte AnyByte() {
    // Ends of ranges and of varints more often than the rest.
    static constexpr std::array<unsigned, 10> kEdges = {0,    1,    2,    3,    0x7f,
                                                        0x80, 0x81, 0xfe, 0xff, 8};
    return std::byte(Below(2) == 0 ? Below(256) : kEdges[Below(kEdges.size())]);
  }

  void Change(Input& input) {
    if (input.empty()) return Insert(input, Below(20) + 1);
    const std::size_t at = Below(input.size());
    switch (Below(9)) {
      case 0:
        input[at] ^= std::byte{1} << static_cast<int>(Below(8));
        return;
      case 1:
      case 2:
        input[at] = AnyByte();
        return;
      case 3:  // a little more or less
        input[at] = std::byte(std::to_integer<unsigned>(input[at]) + Below(9) - 4);
        return;
      case 4:
        return Insert(input, Below(8) == 0 ? 40 : 1);
      case 5:
        return Erase(input, at, Below(8) == 0 ? 40 : 1);
      case 6:  // the end is missing
        return input.resize(at);
      case 7:
        return Repeat(input, at, 1 + Below(30));
      default:
        return Splice(input, at);
    }
  }

  void Insert(Input& input, std::size_t count) {
    const auto at = static_cast<std::ptrdiff_t>(Below(input.size() + 1));
    for (; count > 0; --count) input.insert(input.begin() + at, AnyByte());
  }
  static void Erase(Input& input, std::size_t at, std::size_t count) {
    const auto first = input.begin() + static_cast<std::ptrdiff_t>(at);
    input.erase(first, first + static_cast<std::ptrdiff_t>(std::min(count, input.size() - at)));
  }
  void Repeat(Input& input, std::size_t at, std::size_t count) {
    const Input part(
        input.begin() + static_cast<std::ptrdiff_t>(at),
        input.begin() + static_cast<std::ptrdiff_t>(at + std::min(count, input.size() - at)));
    const auto where = static_cast<std::ptrdiff_t>(Below(input.size() + 1));
    input.insert(input.begin() + where, part.begin(), part.end());
  }
  /// The rest of another input.
  void Splice(Input& input, std::size_t at) {
    const Input& other = Pick();
    if (other.empty()) return;
    input.resize(at);
    const auto from = static_cast<std::ptrdiff_t>(Below(other.size()));
    input.insert(input.end(), other.begin() + from, other.end());
  }

  const std::vector<Input>& corpus_;
  std::mt19937_64 random_;
};

}  // namespace

Input MakeInput(const std::vector<Input>& corpus, std::uint64_t seed, std::uint64_t iteration) {
  return Mutator(corpus, seed * 0x9e3779b97f4a7c15U + iteration).Make();
}

}  // namespace hvl::fuzz
