#include "csrc/net/leaving.h"

#include <algorithm>
#include <utility>

namespace hvl::net {

bool Leaving::Finish() { return !std::exchange(finished_, true); }

bool Leaving::Hear(int peer) {
  const auto found = branches_.find(peer);
  return found != branches_.end() && !std::exchange(found->second.heard, true);
}

std::vector<int> Leaving::TakeDue() {
  std::vector<int> due;
  if (!finished_) return due;
  const auto missing =
      std::ranges::count_if(branches_, [](const auto& branch) { return !branch.second.heard; });
  for (auto& [peer, branch] : branches_) {
    const bool others_have = missing == 0 || (missing == 1 && !branch.heard);
    if (others_have && !std::exchange(branch.told, true)) due.push_back(peer);
  }
  return due;
}

bool Leaving::over() const {
  return finished_ && std::ranges::all_of(branches_, [](const auto& branch) {
           return branch.second.heard && branch.second.told;
         });
}

std::vector<int> Leaving::Missing() const {
  std::vector<int> missing;
  for (const auto& [peer, branch] : branches_)
    if (!branch.heard) missing.push_back(peer);
  return missing;
}

}  // namespace hvl::net
