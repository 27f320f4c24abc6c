// What to tell the user when ranks disagree about an operation.
#pragma once

#include <string>
#include <vector>

#include "csrc/plan/rank_set.h"
#include "csrc/plan/sites.h"
#include "csrc/wire/messages.h"
#include "horovodlite/status.h"

namespace hvl::plan {

/// The ranks that submitted one and the same signature.
struct Variant {
  const wire::Signature* signature = nullptr;
  RankSet ranks;
};

struct Disagreement {
  const std::string& name;
  std::string set;                ///< " of process set 3 (...)", or empty
  std::vector<Variant> variants;  ///< one or more, all different
  const Sites& sites;             ///< as far as they are known
  bool sites_disagree = false;    ///< different sites are a fault as well
  RankSet missing;                ///< ranks that were not heard
};

/// Mismatch, naming the operation, every property that differs with each value and its ranks, and
/// the cure. The culprit is the odd rank out, if there is one.
Status MismatchError(const Disagreement& disagreement);

}  // namespace hvl::plan
