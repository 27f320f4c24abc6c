// The coordinator's view of ranks that have joined: they submit nothing more until all have, and
// count as announced for every allreduce of the world meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/plan/rank_set.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::plan {

/// Operations are numbers that the caller chooses.
class JoinedRanks {
 public:
  explicit JoinedRanks(int size)
      : size_(size), ranks_(size), operations_(static_cast<std::size_t>(size)) {}

  bool empty() const { return ranks_.empty(); }
  const RankSet& ranks() const { return ranks_; }
  /// The one that joined last.
  int last() const { return last_; }
  void Add(int rank, std::uint32_t operation);
  /// That join has ended, well or badly.
  void End(std::uint32_t operation);

 private:
  const int size_;
  RankSet ranks_;
  std::vector<std::uint32_t> operations_;  // by rank: which join it announced
  int last_ = 0;
};

/// Why an operation that is no allreduce cannot run while ranks have joined.
Status JoinedError(const std::string& name, OpKind kind, const RankSet& joined);

}  // namespace hvl::plan
