#include "csrc/plan/failed_instances.h"

#include <algorithm>
#include <utility>

#include "csrc/base/str.h"

namespace hvl::plan {

void FailedInstances::Add(std::uint32_t record, std::uint64_t decision, RankSet missing) {
  open_.push_back({record, decision, std::move(missing)});
}

Status FailedInstances::Acknowledge(int rank, std::uint64_t decision, std::uint64_t last_decision,
                                    std::vector<std::uint32_t>& closed) {
  std::uint64_t& last = acknowledged_[static_cast<std::size_t>(rank)];
  if (decision < last || decision > last_decision) {
    return {StatusCode::kInternal, Format("decision {} acknowledged after {}, the last one is {}",
                                          decision, last, last_decision)};
  }
  for (std::size_t i = FirstOpenTowards(rank); i < open_.size() && open_[i].decision <= decision;) {
    if (!Close(i, rank, closed)) ++i;
  }
  last = decision;
  return Status::Ok();
}

bool FailedInstances::Consume(std::uint32_t record, int rank, std::vector<std::uint32_t>& closed) {
  for (std::size_t i = FirstOpenTowards(rank); i < open_.size(); ++i) {
    if (open_[i].record != record || !open_[i].missing.Contains(rank)) continue;
    Close(i, rank, closed);
    return true;
  }
  return false;
}

void FailedInstances::Forgive(int rank, const std::function<bool(std::uint32_t record)>& covered,
                              std::vector<std::uint32_t>& closed) {
  for (std::size_t i = FirstOpenTowards(rank); i < open_.size();) {
    if (!covered(open_[i].record) || !Close(i, rank, closed)) ++i;
  }
}

/// Those of decisions that the rank has acknowledged need not be looked at.
std::size_t FailedInstances::FirstOpenTowards(int rank) const {
  const auto first =
      std::upper_bound(open_.begin(), open_.end(), acknowledged_[static_cast<std::size_t>(rank)],
                       [](std::uint64_t decision, const Instance& instance) {
                         return decision < instance.decision;
                       });
  return static_cast<std::size_t>(first - open_.begin());
}

/// True when the instance was removed.
bool FailedInstances::Close(std::size_t position, int rank, std::vector<std::uint32_t>& closed) {
  Instance& instance = open_[position];
  instance.missing.Erase(rank);
  if (!instance.missing.empty()) return false;
  closed.push_back(instance.record);
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(position));
  return true;
}

}  // namespace hvl::plan
