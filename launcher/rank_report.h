// What a rank's status page says, in words for the summary of a job. Pure.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/status_page.h"

namespace hvl::launcher {

/// The rank that this one ended because of: as its runtime says, else (no runtime, or none that has
/// come far enough to know) as its last words do (BlamedRank in verdict.h).
std::optional<int> BlamedBy(const StatusReport& report, const std::deque<std::string>& last_lines,
                            int own, int rank_count);

/// "last op: allreduce 'w' (batch 7, 64.0 MiB), running for 0.3 s; heartbeat 0.2 s before"; "" when
/// the rank had no runtime.
std::string LastOperation(const StatusReport& report);

/// Why its session ended, where it was this rank's own fault; else "".
std::string OwnError(const StatusReport& report);

/// What each rank was doing when the job was stopped, a line for all that did the same; empty when
/// no rank had a runtime.
std::vector<std::string> WhatRanksDid(const std::map<int, StatusReport>& reports);

/// Some rank has waited for the others for so long that they have come apart.
bool LooksStalled(const std::map<int, StatusReport>& reports);

}  // namespace hvl::launcher
