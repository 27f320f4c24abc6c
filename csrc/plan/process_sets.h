// The process sets that a rank knows of. The coordinator knows a set from the decision that
// registers it, every participant from when it applies that decision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "csrc/plan/rank_set.h"
#include "csrc/wire/messages.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::plan {

struct ProcessSet {
  RankSet members;
  std::uint64_t last_sequence = 0;  ///< participant: of the last batch of this set
  bool closing = false;             ///< participant: this rank has submitted its removal
  // Rounds of unnamed operations.
  std::uint64_t rounds_ended = 0;   ///< participant
  Status round_error;               ///< participant: why the last one ended
  bool owes_round_error = false;    ///< participant: this rank's program has not heard of it
  std::uint64_t round_decided = 0;  ///< coordinator: the decision that ended the last round

  std::size_t count() const { return static_cast<std::size_t>(members.count()); }
};

class ProcessSets {
 public:
  explicit ProcessSets(int size);

  /// Null when there is none. The world is always there, and so are the pairs (PairOfSet).
  ProcessSet* Find(ProcessSetId id) { return id == kWorldSet ? &world_ : FindOther(id); }
  const ProcessSet* Find(ProcessSetId id) const { return const_cast<ProcessSets*>(this)->Find(id); }
  /// As a decided operation of kind kProcessSet says. False when it adds a set that is there, or
  /// removes one that is not.
  bool Apply(ProcessSetId id, const std::vector<std::int32_t>& ranks);
  /// The last sequence, of the sets that this rank is in.
  std::uint64_t LastSequenceWith(int rank) const;
  /// " of process set 3 (ranks 0, 2)", for messages; empty for the world.
  std::string Suffix(ProcessSetId id) const;

 private:
  ProcessSet* FindOther(ProcessSetId id);

  const int size_;
  ProcessSet world_;
  std::map<ProcessSetId, ProcessSet> others_;
};

/// The set whose ranks agree on an operation: all ranks, for the registration of a set.
inline ProcessSetId OwnerOf(const wire::Signature& signature) {
  return signature.kind == OpKind::kProcessSet ? kWorldSet : signature.process_set;
}

/// True for what is numbered in rounds: unnamed operations. (The end of a join is a common point by
/// itself, and so is a change of the sets.)
inline bool HasRound(OpKind kind, bool transient) {
  return transient && kind != OpKind::kJoin && kind != OpKind::kProcessSet;
}

/// How many first dimensions each rank announces, in a set of `ranks`.
std::size_t AnnouncedDims(const wire::Signature& signature, std::size_t ranks);

}  // namespace hvl::plan
