#include "csrc/plan/rank_set.h"

#include "csrc/base/str.h"

namespace hvl::plan {

void RankSet::InsertAll(const RankSet& others) {
  first_ |= others.first_;
  for (std::size_t i = 0; i < more_.size(); ++i) more_[i] |= others.more_[i];
  Recount();
}

void RankSet::EraseAll(const RankSet& others) {
  first_ &= ~others.first_;
  for (std::size_t i = 0; i < more_.size(); ++i) more_[i] &= ~others.more_[i];
  Recount();
}

void RankSet::Recount() {
  count_ = std::popcount(first_);
  for (const std::uint64_t word : more_) count_ += std::popcount(word);
}

RankSet RankSet::Complement() const {
  RankSet others(size_);
  for (int rank = 0; rank < size_; ++rank) {
    if (!Contains(rank)) others.Insert(rank);
  }
  return others;
}

int RankSet::CountBelow(int rank) const {
  int count = 0;
  for (int member = 0; member < rank; ++member) count += Contains(member) ? 1 : 0;
  return count;
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
