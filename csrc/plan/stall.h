// What to tell the user about operations that some ranks have not submitted.
#pragma once

#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/plan/planner.h"
#include "csrc/plan/rank_set.h"
#include "horovodlite/status.h"

namespace hvl::plan {

/// For so long operations are not suspected of waiting for each other: ranks may submit the other
/// one as well, from another thread or in another order.
Duration DeadlockAge(const Options& options);

struct StalledOperation {
  std::string name;
  std::string set;  ///< " of process set 3 (...)", or empty
  RankSet ready;    ///< ranks that have submitted it
  RankSet missing;
  std::string sites;  ///< of the ready ranks, as far as they are known
  Duration age{};     ///< since the first of them submitted it
};

/// One warning for all of them, oldest first: names, ages, missing and ready ranks.
Notice StallNotice(const std::vector<StalledOperation>& stalled);

/// Timeout, naming the missing ranks; the culprit is the first of them.
Status StallError(const StalledOperation& stalled, Duration limit);

}  // namespace hvl::plan
