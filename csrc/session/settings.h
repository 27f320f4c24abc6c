// From the one Config to the options of each room.
#pragma once

#include <optional>
#include <vector>

#include <span>

#include "csrc/base/clock.h"
#include "csrc/collective/local.h"
#include "csrc/collective/tcp.h"
#include "csrc/config/config.h"
#include "csrc/engine/engine.h"
#include "csrc/plan/planner.h"
#include "csrc/plugin/mpi.h"

namespace hvl::session {

Duration SecondsToDuration(double seconds);

/// The local and the cross pair from the hosts (net::Mesh::hosts), where there are several and
/// nobody has told the cross pair.
void PlaceByHosts(std::span<const int> hosts, config::Config* config);

plan::Options PlannerOptions(const config::Config& config, bool has_gates);
engine::Options EngineOptions(const config::Config& config);
/// The entry of HVL_THREAD_AFFINITY for this local rank; nothing when the knob is not set.
/// InvalidArgument when it is no list of one processor per rank of the host.
Result<std::optional<int>> ThreadProcessor(const config::Config& config);
collective::LocalOptions LocalOptions(const config::Config& config);
collective::TcpOptions TcpOptions(const config::Config& config);
/// All but the session and the groups.
plugin::MpiOptions MpiOptions(const config::Config& config);
/// Where the groups of HVL_SUM_GROUPS end; none when the knob is not set. InvalidArgument when it
/// is no list of numbers that add up to the size of the world.
Result<std::vector<int>> SumGroupEnds(const config::Config& config);
/// Whether this rank writes HVL_TIMELINE from the start.
bool WritesTimeline(const config::Config& config);
/// Whether to call KeepFreedMemory: not when the user has set the C library's own variables.
bool KeepsFreedMemory(const config::Config& config, const config::EnvSource& env);

}  // namespace hvl::session
