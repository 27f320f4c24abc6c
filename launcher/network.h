// What hvlrun has to know of this machine's network: names, interfaces, and a port for rank 0.
#pragma once

#include <string>
#include <vector>

#include "csrc/net/fd.h"
#include "horovodlite/status.h"

namespace hvl::launcher {

/// The host name, its first part, and the addresses of all interfaces. Asks no name server.
std::vector<std::string> OwnNames();

/// OK when all exist; the error lists those that do.
Status RequireInterfaces(const std::vector<std::string>& interfaces);

/// A TCP port that nobody else is given while `guard` is open. It is bound without listening and
/// may be shared (SO_REUSEADDR), so that rank 0 can listen on it, as torch.distributed does.
struct ReservedPort {
  net::UniqueFd guard;  ///< invalid without a network; then `port` is only a usual number
  int port = 0;
};
ReservedPort ReservePort();

/// InvalidArgument when `port` is no number or somebody listens on it. `name` is for the message.
Status RequireFreePort(const std::string& name, const std::string& port);

}  // namespace hvl::launcher
