// What the coordinator remembers of failed operations: which ranks had not announced them, so that
// an announcement which crosses the failure is not taken for the next operation of that name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "csrc/plan/rank_set.h"
#include "horovodlite/status.h"

namespace hvl::plan {

/// A failed instance is *open* towards a rank from the decision that fails it until the rank
/// acknowledges that decision. An announcement of that name by that rank in between was sent before
/// the rank knew, so it belongs to the failed instance; once acknowledged, the rank itself has
/// accounted for the failure. Records are numbers that the caller chooses.
class FailedInstances {
 public:
  explicit FailedInstances(int size) : acknowledged_(static_cast<std::size_t>(size)) {}

  /// `decision` fails an operation that the ranks in `missing`, one or more, have not announced.
  void Add(std::uint32_t record, std::uint64_t decision, RankSet missing);
  /// A rank has applied all decisions up to this one, of `last_decision`. Internal when that cannot
  /// be. Records are appended to `closed` for each instance that is open towards no rank any more.
  Status Acknowledge(int rank, std::uint64_t decision, std::uint64_t last_decision,
                     std::vector<std::uint32_t>& closed);
  /// True when an announcement of this record by this rank belongs to a failed instance; the oldest
  /// one then is not open towards the rank any more.
  bool Consume(std::uint32_t record, int rank, std::vector<std::uint32_t>& closed);

  /// The rank has joined, which stands for all that it never announced: no instance of the records
  /// that `covered` accepts is open towards it any more.
  void Forgive(int rank, const std::function<bool(std::uint32_t record)>& covered,
               std::vector<std::uint32_t>& closed);

  /// The last decision that the rank has acknowledged.
  std::uint64_t acknowledged(int rank) const {
    return acknowledged_[static_cast<std::size_t>(rank)];
  }
  std::size_t size() const { return open_.size(); }
  /// A rank that has not acknowledged the oldest one. Requires size() > 0.
  int SilentRank() const { return open_.front().missing.First(); }

 private:
  struct Instance {
    std::uint32_t record = 0;
    std::uint64_t decision = 0;
    RankSet missing;
  };

  std::size_t FirstOpenTowards(int rank) const;
  bool Close(std::size_t position, int rank, std::vector<std::uint32_t>& closed);

  std::vector<std::uint64_t> acknowledged_;  // last decision, by rank
  std::vector<Instance> open_;               // in the order of decisions
};

}  // namespace hvl::plan
