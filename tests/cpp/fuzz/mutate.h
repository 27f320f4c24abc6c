// Changes to valid inputs that parsers find interesting.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/cpp/fuzz/targets.h"

namespace hvl::fuzz {

/// The input number `iteration` of a run: some input of the corpus with a few changes (none now and
/// then). The same for the same corpus, seed and iteration, so that a failure can be run again.
Input MakeInput(const std::vector<Input>& corpus, std::uint64_t seed, std::uint64_t iteration);

}  // namespace hvl::fuzz
