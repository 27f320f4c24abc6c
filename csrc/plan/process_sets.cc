#include "csrc/plan/process_sets.h"

#include <algorithm>
#include <optional>

#include "csrc/base/str.h"

namespace hvl::plan {

ProcessSets::ProcessSets(int size) : size_(size) { world_.members = RankSet(size).Complement(); }

ProcessSet* ProcessSets::FindOther(ProcessSetId id) {
  const auto found = others_.find(id);
  if (found != others_.end()) return &found->second;
  const std::optional<RankPair> pair = PairOfSet(id, size_);
  if (!pair) return nullptr;
  ProcessSet& set = others_[id];
  set.members = RankSet(size_);
  set.members.Insert(pair->from);
  set.members.Insert(pair->to);
  return &set;
}

bool ProcessSets::Apply(ProcessSetId id, const std::vector<std::int32_t>& ranks) {
  if (ranks.empty()) return others_.erase(id) > 0;
  const auto [entry, is_new] = others_.try_emplace(id);
  if (!is_new) return false;
  entry->second.members = RankSet(size_);
  for (const std::int32_t rank : ranks) entry->second.members.Insert(rank);
  return true;
}

// A set that was removed needs no memory: its removal is a later batch of the world.
std::uint64_t ProcessSets::LastSequenceWith(int rank) const {
  std::uint64_t last = world_.last_sequence;
  for (const auto& [id, set] : others_) {
    if (set.members.Contains(rank)) last = std::max(last, set.last_sequence);
  }
  return last;
}

std::string ProcessSets::Suffix(ProcessSetId id) const {
  const ProcessSet* const set = Find(id);
  if (id == kWorldSet || set == nullptr) return "";
  return Format(" of process set {} ({})", id, set->members.ToString());
}

std::size_t AnnouncedDims(const wire::Signature& signature, std::size_t ranks) {
  if (signature.kind == OpKind::kAllgather) return signature.tensors.size();
  if (signature.kind == OpKind::kAlltoall) return signature.tensors.size() * ranks;
  return 0;
}

}  // namespace hvl::plan
