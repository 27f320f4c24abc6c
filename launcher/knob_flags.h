// The command-line flags that stand in the knob table: what they are called, and the environment
// they stand for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "csrc/config/config.h"
#include "launcher/env_block.h"

namespace hvl::launcher {

struct KnobFlag {
  config::KnobInfo knob;
  std::string names;  ///< for the command-line library; a switch also has its negation
  bool is_switch = false;
};

/// One per knob that has a flag, in the order of the table.
std::vector<KnobFlag> KnobFlags();

/// The variables that the flag with this value stands for: the knob and its alias, so that a script
/// that reads either sees the winner. An error names flag, value and what is allowed.
Result<std::vector<EnvSetting>> KnobSettings(const KnobFlag& flag, const std::string& value);

}  // namespace hvl::launcher
