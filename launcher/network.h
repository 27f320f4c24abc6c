// What hvlrun has to know of this machine's network: names, interfaces, and a port for rank 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/net/fd.h"
#include "horovodlite/status.h"

namespace hvl::launcher {

/// The host name, its first part, and the addresses of all interfaces. Asks no name server.
std::vector<std::string> OwnNames();

/// As gethostname() says.
std::string HostName();

/// Addresses by which others may reach this machine: of all interfaces, without loopback and
/// link-local ones.
std::vector<std::string> OutsideAddresses();

/// The first address of an interface of this machine that is no link-local one; "" without one.
std::string AddressOfInterface(const std::string& interface_name);

/// The address that a name stands for; "" when it is not known here. May ask a name server.
std::string AddressOf(const std::string& host);

/// The address of this machine from which packets to `host` leave; "" when there is no way.
std::string AddressTowards(const std::string& host);

/// OK when all exist; the error lists those that do.
Status RequireInterfaces(const std::vector<std::string>& interfaces);

/// Where a port is to be used.
enum class PortScope : std::uint8_t { kLoopback, kAllAddresses };

/// A TCP port that nobody else is given while `guard` is open. It is bound without listening and
/// may be shared (SO_REUSEADDR), so that rank 0 can listen on it, as torch.distributed does.
struct ReservedPort {
  net::UniqueFd guard;  ///< invalid without a network; then `port` is only a usual number
  int port = 0;
};
ReservedPort ReservePort(PortScope scope);

/// InvalidArgument when `port` is no number or somebody listens on it. `name` is for the message.
Status RequireFreePort(const std::string& name, const std::string& port);

}  // namespace hvl::launcher
