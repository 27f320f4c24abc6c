// What to tell the user when ranks disagree about an operation.
#pragma once

#include <string>
#include <vector>

#include "csrc/plan/rank_set.h"
#include "csrc/wire/messages.h"
#include "horovodlite/status.h"

namespace hvl::plan {

/// The ranks that submitted one and the same signature.
struct Variant {
  const wire::Signature* signature = nullptr;
  RankSet ranks;
};

/// Mismatch, naming the operation, every property in which the variants (two or more, all
/// different) differ with each value and its ranks, and the cure. The culprit is the odd rank out,
/// if there is one.
Status MismatchError(const std::string& name, const std::vector<Variant>& variants,
                     const RankSet& missing);

}  // namespace hvl::plan
