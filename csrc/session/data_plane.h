// Chooses the data plane of a session.
#pragma once

#include <memory>

#include "csrc/base/log.h"
#include "csrc/collective/backend.h"
#include "csrc/config/config.h"
#include "csrc/net/mesh.h"
#include "horovodlite/status.h"

namespace hvl::session {

/// Collective: every rank of `mesh` calls it. Ranks have agreed on the knobs that decide. On one
/// host shared memory, on several the two-level data plane, unless HVL_CPU_OPERATIONS says
/// otherwise; InvalidArgument where that, or HVL_SUM_GROUPS, cannot be. Ranks are summed host by
/// host.
Result<std::unique_ptr<collective::Backend>> MakeDataPlane(const config::Config& config,
                                                           net::Mesh& mesh, const Logger& logger);

}  // namespace hvl::session
