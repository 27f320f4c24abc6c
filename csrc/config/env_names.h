// Warnings about variable names: misspelt ones, and Horovod's that have no effect here.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/config/config.h"

namespace hvl::config {

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (restricted
/// Damerau-Levenshtein). Cost: |a| * |b| steps.
std::size_t EditDistance(std::string_view a, std::string_view b);

/// A name that Horovod reads and that has no effect here.
struct HorovodName {
  std::string_view name;  ///< a "*" at the end stands for any rest
  std::string_view why;
};
std::span<const HorovodName> HorovodNamesWithoutEffect();

/// One sentence for each name that deserves one, in the order given:
/// - an HVL_* name that is neither a knob nor reserved, with the nearest knob if one is near;
/// - a HOROVOD_* name that is a near miss of an alias (others may belong to Horovod's own build);
/// - a HOROVOD_* name that Horovod reads and that has no effect here, with the reason.
///
/// Reserved, never warned about: HVL_TEST_* and HVL_BENCH_* (test programs), HVL_BUILD_* (building
/// the package) and HVL_RUN_* (hvlrun and what it starts).
std::vector<std::string> NameWarnings(const std::vector<std::string>& names);

/// Sentences about variables of Horovod's whose value decides whether they ask for what they do not
/// get: HOROVOD_DYNAMIC_PROCESS_SETS that forbids changes, and a HOROVOD_HOSTNAME that is not
/// hvlrun's.
std::vector<std::string> ValueWarnings(const EnvSource& env);

}  // namespace hvl::config
