// Where in the user's program ranks submitted an operation, as far as it is known.
#pragma once

#include <string>
#include <vector>

#include "csrc/plan/rank_set.h"

namespace hvl::plan {

class Sites {
 public:
  struct Site {
    std::string text;
    RankSet ranks;
  };

  /// Replaces what was known of this rank, of a world of `size`. Nothing when `site` is empty.
  void Note(int rank, const std::string& site, int size);
  void Clear() { sites_.clear(); }
  bool differ() const { return sites_.size() > 1; }
  const std::vector<Site>& all() const { return sites_; }
  /// "train.py:12 on ranks 0, 2, train.py:20 on rank 1", of these ranks; empty = nothing is known.
  std::string ToString(const RankSet& ranks) const;

 private:
  std::vector<Site> sites_;  // in the order of their first announcement, none without ranks
};

}  // namespace hvl::plan
