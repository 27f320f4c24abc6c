// The coordinator's tables of ids: which record an id means, in the current epoch and in the one
// before. docs/negotiation.md tells why ids end by epochs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/plan/rank_set.h"
#include "horovodlite/status.h"

namespace hvl::plan {

/// Records are numbers that the caller chooses. The table of the previous epoch lives until every
/// rank has announced something in the current one; until then no further epoch may start.
class Ids {
 public:
  Ids(int size, std::size_t capacity);

  /// A rank announces with ids of this epoch. Internal when that cannot be.
  Status Enter(int rank, std::uint32_t epoch);
  /// Internal when the id was never assigned. `epoch` is one that a rank has just entered.
  Result<std::uint32_t> Find(std::uint32_t epoch, std::uint32_t id) const;

  /// The record of an assigned id of the current epoch.
  std::uint32_t FindCurrent(std::uint32_t id) const { return current_[id]; }

  /// The next id, or none when they are used up; then MayStartEpoch tells what to do about it.
  std::optional<std::uint32_t> Assign(std::uint32_t record);
  bool MayStartEpoch() const { return capacity_ > 0 && !previous_alive_; }
  /// Ends the current epoch; returns the records whose ids have become those of the previous one.
  const std::vector<std::uint32_t>& StartEpoch();
  /// The records of a previous epoch that no rank can speak of any more; each is told once.
  std::vector<std::uint32_t> TakeForgotten();

 private:
  const int size_;
  const std::size_t capacity_;
  std::uint32_t epoch_ = 0;
  std::vector<std::uint32_t> current_;   // record by id
  std::vector<std::uint32_t> previous_;  // likewise
  bool previous_alive_ = false;
  std::vector<std::uint32_t> epoch_of_rank_;
  RankSet in_current_epoch_;
};

}  // namespace hvl::plan
