// What to tell the user when ranks disagree about an operation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "csrc/plan/rank_set.h"
#include "csrc/plan/sites.h"
#include "csrc/wire/messages.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

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

/// The name without the kind that bindings put in front of it, so that one name may be used for
/// several kinds at once: "x" of "allreduce.x" and of "grouped_allreduce.x".
std::string_view UserName(std::string_view name, OpKind kind);

/// Ranks that submitted an operation that the others did not.
struct KindVariant {
  std::string name;
  OpKind kind = OpKind::kAllreduce;
  RankSet ranks;
  std::string sites;  ///< where; may be empty
};

/// Ranks that are blocked in an operation which others of them do not submit.
struct BlockedVariant {
  KindVariant operation;
  std::string set;  ///< " of process set 3 (...)", or empty
};

/// Mismatch: the ranks wait for each other in these operations, one or more.
Status DeadlockError(std::vector<BlockedVariant> variants);

/// Mismatch: what the user calls `name` is another operation on each of several groups of ranks.
Status KindsError(const std::string& name, const std::string& set,
                  std::vector<KindVariant> variants);

/// Mismatch, naming the operation, every property that differs with each value and its ranks, and
/// the cure. The culprit is the odd rank out, if there is one.
Status MismatchError(const Disagreement& disagreement);

}  // namespace hvl::plan
