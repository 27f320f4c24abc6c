// knobs.def as a table of functions: what the parser, the help texts and the comparisons walk over.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "csrc/config/config.h"

namespace hvl::config {

struct KnobRow {
  KnobInfo info;
  /// Sets the knob's field; false (and nothing changed) when `text` is malformed or out of range.
  bool (*assign)(std::string_view text, Config* config);
  std::string (*print)(const Config& config);
};

/// In the order of knobs.def. Built once, never changed.
const std::vector<KnobRow>& KnobTable();

/// The row of an HVL_* name, or null.
const KnobRow* FindKnob(std::string_view env_name);

}  // namespace hvl::config
