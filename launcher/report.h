// What --dry-run and --check-build print.
#pragma once

#include <string>

#include "launcher/env_block.h"
#include "launcher/job.h"

namespace hvl::launcher {

/// Ranks, command and environment of a job that is not started.
std::string DryRun(const Job& job);

/// What this installation can do, laid out as horovodrun does. Asks the python3 of PATH for torch.
std::string CheckBuild(const EnvBlock& environment);

}  // namespace hvl::launcher
