// What to tell the user about operations that some ranks have not submitted.
#pragma once

#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/plan/planner.h"
#include "csrc/plan/rank_set.h"
#include "horovodlite/status.h"

namespace hvl::plan {

struct StalledOperation {
  std::string name;
  RankSet ready;   ///< ranks that have submitted it
  Duration age{};  ///< since the first of them did
};

/// One warning for all of them, oldest first: names, ages, missing and ready ranks.
Notice StallNotice(const std::vector<StalledOperation>& stalled);

/// Timeout, naming the missing ranks; the culprit is the first of them.
Status StallError(const StalledOperation& stalled, Duration limit);

}  // namespace hvl::plan
