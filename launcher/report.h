// What --dry-run prints.
#pragma once

#include <string>

#include "launcher/job.h"

namespace hvl::launcher {

/// Ranks, command and environment of a job that is not started.
std::string DryRun(const Job& job);

}  // namespace hvl::launcher
