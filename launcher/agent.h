// An agent: what hvlrun is on a host other than the head's. It starts the ranks of that host as the
// head orders, sends what they print and how they end, and outlives neither the head nor them.
#pragma once

#include <optional>

#include "csrc/net/fd.h"
#include "csrc/net/handshake.h"
#include "csrc/net/secret.h"
#include "launcher/env_block.h"

namespace hvl::launcher {

struct AgentSetup {
  net::UniqueFd from_head;
  net::UniqueFd to_head;
  net::UniqueFd front;  ///< as in front.h
  EnvBlock own;         ///< environment of the agent itself
  /// What the job's secret is derived from, where the stream is no place for it.
  std::optional<net::Secret> shared_secret;
  /// Of a connection over the network, which nobody may write into.
  std::optional<net::LinkKeys> keys;
};

/// Returns the exit status: 0 when the head has been told how everything ended; then no process of
/// the job is left here. Requires that SIGCHLD is blocked and SIGPIPE is ignored.
int RunAgent(AgentSetup setup);

/// The secret of one job, from the one that a cluster's pods share.
net::Secret JobSecret(const net::Secret& shared, const std::string& job_id);

}  // namespace hvl::launcher
