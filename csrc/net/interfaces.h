// The addresses of this host, and which of them a job may use (HVL_NETWORK).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "csrc/net/address.h"
#include "horovodlite/status.h"

namespace hvl::net {

/// Numeric addresses of this host's interfaces that are up. `networks` is a comma list of interface
/// names, addresses and networks ("eth0,192.168.7.1,10.0.0.0/8,fd00::/8"): what the first one names
/// comes first. Empty: all but loopback and link-local ones, IPv4 first; those too where the host
/// has no others. InvalidArgument when an entry has no such form; Unavailable when none of them
/// names an address of this host.
Result<std::vector<std::string>> ChooseAddresses(std::string_view networks);

/// Whether a TCP address (its port does not matter) is one of this host's.
bool IsOwnAddress(const SocketAddress& address);

}  // namespace hvl::net
