#include "csrc/plan/join.h"

#include "csrc/base/str.h"

namespace hvl::plan {

void JoinedRanks::Add(int rank, std::uint32_t operation) {
  ranks_.Insert(rank);
  operations_[static_cast<std::size_t>(rank)] = operation;
  last_ = rank;
}

void JoinedRanks::End(std::uint32_t operation) {
  for (int rank = 0; rank < size_; ++rank) {
    if (operations_[static_cast<std::size_t>(rank)] == operation) ranks_.Erase(rank);
  }
}

Status JoinedError(const std::string& name, OpKind kind, const RankSet& joined) {
  return {StatusCode::kMismatch,
          Format("{} '{}' is not supported with Join at this time: {} joined, and only an "
                 "allreduce can run without the data of all ranks. Cure: submit it before any rank "
                 "calls join(), or after join() has returned.",
                 OpKindName(kind), name, joined.ToString()),
          joined.First()};
}

}  // namespace hvl::plan
