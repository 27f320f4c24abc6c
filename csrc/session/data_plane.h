// Chooses the data plane of a session.
#pragma once

#include <memory>

#include "csrc/base/log.h"
#include "csrc/collective/backend.h"
#include "csrc/config/config.h"
#include "csrc/net/mesh.h"
#include "horovodlite/status.h"

namespace hvl::session {

/// Collective: every rank of `mesh` calls it. Ranks have agreed on the knob that decides.
Result<std::unique_ptr<collective::Backend>> MakeDataPlane(const config::Config& config,
                                                           net::Mesh& mesh, const Logger& logger);

}  // namespace hvl::session
