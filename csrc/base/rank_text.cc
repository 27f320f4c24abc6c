#include "csrc/base/rank_text.h"

#include <cstddef>

#include "csrc/base/str.h"

namespace hvl {
namespace {

constexpr int kMostRanges = 20;

/// "4", "4, 5" or "4-6". Two neighbours are easier to read as "4, 5" than as "4-5".
std::string RangeText(int first, int last) {
  if (last == first) return Format("{}", first);
  return Format("{}{}{}", first, last == first + 1 ? ", " : "-", last);
}

}  // namespace

std::string RankList(std::span<const int> ranks) {
  std::string text = "[";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += Format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return text + "]";
}

std::string RankRanges(std::span<const int> ranks) {
  std::string text;
  int ranges = 0;
  for (std::size_t first = 0; first < ranks.size(); ++ranges) {
    if (ranges == kMostRanges) return text + Format(" and {} more", ranks.size() - first);
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + RangeText(ranks[first], ranks[last]);
    first = last + 1;
  }
  return text;
}

std::string RanksText(std::span<const int> ranks) {
  if (ranks.empty()) return "no rank";
  return (ranks.size() == 1 ? "rank " : "ranks ") + RankRanges(ranks);
}

}  // namespace hvl
