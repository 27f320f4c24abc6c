// Variables that say something about a host and who is logged in there. A rank on another host gets
// those of its own host, and all others from the head.
#pragma once

#include <string_view>
#include <vector>

#include "launcher/env_block.h"

namespace hvl::launcher {

bool IsHostVariable(std::string_view name);

/// `env` without them, except those in `kept` (which the user has set for all ranks).
EnvBlock WithoutHostVariables(const EnvBlock& env, const std::vector<EnvSetting>& kept);

/// Adds those of `own` that `env` has not.
void AddHostVariables(const EnvBlock& own, EnvBlock* env);

}  // namespace hvl::launcher
