#include "csrc/engine/process_sets.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"

namespace hvl::engine {
namespace {

ProcessSetPtr MakeSet(ProcessSetId id, std::vector<int> ranks, int rank) {
  auto set = std::make_shared<ProcessSet>();
  set->id = id;
  set->ranks = std::move(ranks);
  set->position = set->PositionOf(rank);
  return set;
}

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

int ProcessSet::PositionOf(int rank) const {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end() || *found != rank) return -1;
  return static_cast<int>(found - ranks.begin());
}

std::string ProcessSet::ToString() const {
  return Format("process set {} {}", id, RankList(ranks));
}

ProcessSets::ProcessSets(int rank, int size)
    : rank_(rank), world_(MakeSet(kWorldSet, AllRanks(size), rank)) {}

Result<ProcessSetPtr> ProcessSets::Find(ProcessSetId id) const {
  if (id == kWorldSet) return world_;
  if (const std::optional<RankPair> pair = PairOfSet(id, world_->size())) {
    return MakeSet(id, {std::min(pair->from, pair->to), std::max(pair->from, pair->to)}, rank_);
  }
  const MutexLock lock(mutex_);
  const auto found = sets_.find(id);
  if (found != sets_.end()) return found->second;
  return Status(StatusCode::kInvalidArgument,
                Format("process set {} does not exist, or has not been registered; every rank has "
                       "to add it first",
                       id));
}

std::optional<ProcessSetId> ProcessSets::FindRanks(std::span<const int> ranks) const {
  const auto is_it = [ranks](const ProcessSet& set) {
    return std::equal(ranks.begin(), ranks.end(), set.ranks.begin(), set.ranks.end());
  };
  if (is_it(*world_)) return kWorldSet;
  const MutexLock lock(mutex_);
  for (const auto& [id, set] : sets_) {
    if (is_it(*set)) return id;
  }
  return std::nullopt;
}

ProcessSetPtr ProcessSets::Add(ProcessSetId id, std::vector<int> ranks) {
  ProcessSetPtr set = MakeSet(id, std::move(ranks), rank_);
  const MutexLock lock(mutex_);
  sets_[id] = set;
  return set;
}

void ProcessSets::Remove(ProcessSetId id) {
  const MutexLock lock(mutex_);
  sets_.erase(id);
}

Result<const DataPlane*> DataPlanes::Of(ProcessSetId id) {
  if (id == kWorldSet) return &world_;
  auto found = parts_.find(id);
  if (found == parts_.end()) {
    HVL_ASSIGN_OR_RETURN(const ProcessSetPtr set, sets_.Find(id));
    HVL_RETURN_IF_ERROR(Add(set));
    found = parts_.find(id);
  }
  HVL_CHECK(found != parts_.end(), "a batch was planned for a process set of others");
  return &found->second.plane;
}

Status DataPlanes::Add(const ProcessSetPtr& set) {
  if (!set->included()) return Status::Ok();
  HVL_ASSIGN_OR_RETURN(std::unique_ptr<collective::Backend> backend,
                       world_.backend->Split(set->ranks));
  collective::Backend* const borrowed = backend.get();
  parts_[set->id] = Part{std::move(backend), DataPlane{set, borrowed}};
  return Status::Ok();
}

void DataPlanes::Remove(ProcessSetId id) { parts_.erase(id); }

}  // namespace hvl::engine
