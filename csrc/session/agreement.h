// What ranks compare when they join: the version and the knobs that must be the same everywhere.
#pragma once

#include <span>
#include <string>

#include "csrc/config/config.h"
#include "horovodlite/status.h"

namespace hvl::session {

/// This rank's side, for net::MeshOptions::blob: lines `name=value`.
std::string DescribeRank(const config::Config& config);

/// Mismatch when the descriptions (by rank) differ: names the knob, the values and the ranks that
/// have them. All ranks see the same descriptions, so all of them get the same answer.
Status CheckAgreement(std::span<const std::string> descriptions);

}  // namespace hvl::session
