#include "csrc/plan/rank_set.h"

#include "csrc/base/rank_text.h"

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
  std::vector<int> members;
  for (int rank = 0; rank < size_; ++rank) {
    if (Contains(rank)) members.push_back(rank);
  }
  return RanksText(members);
}

}  // namespace hvl::plan
