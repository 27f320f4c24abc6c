// The attempts at a job: one, and one more after each failure as long as --max-restarts allows it.
#pragma once

#include "csrc/net/fd.h"
#include "launcher/job.h"

namespace hvl::launcher {

/// Runs in the supervisor process; `front` is as in Runner. Returns hvlrun's exit status; then no
/// process of the job is left.
int RunAttempts(const Job& job, net::UniqueFd front);

}  // namespace hvl::launcher
