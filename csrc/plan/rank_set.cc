#include "csrc/plan/rank_set.h"

#include "csrc/base/str.h"

namespace hvl::plan {

void RankSet::InsertAll(const RankSet& others) {
  for (int rank = 0; rank < size_; ++rank) {
    if (others.Contains(rank)) Insert(rank);
  }
}

RankSet RankSet::Complement() const {
  RankSet others(size_);
  for (int rank = 0; rank < size_; ++rank) {
    if (!Contains(rank)) others.Insert(rank);
  }
  return others;
}

int RankSet::First() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (Contains(rank)) return rank;
  }
  return -1;
}

std::string RankSet::ToString() const {
  constexpr int kMaxRanges = 20;
  if (empty()) return "no rank";
  std::string text = count_ == 1 ? "rank " : "ranks ";
  int named = 0;
  int ranges = 0;
  for (int first = 0; first < size_; ++first) {
    if (!Contains(first)) continue;
    int last = first;
    while (last + 1 < size_ && Contains(last + 1)) ++last;
    if (++ranges > kMaxRanges) return text + Format(" and {} more", count_ - named);
    if (ranges > 1) text += ", ";
    // Two neighbours are easier to read as "4, 5" than as "4-5".
    text += last == first       ? Format("{}", first)
            : last == first + 1 ? Format("{}, {}", first, last)
                                : Format("{}-{}", first, last);
    named += last - first + 1;
    first = last;
  }
  return text;
}

}  // namespace hvl::plan
