#include "launcher/head_address.h"

#include <algorithm>
#include <sstream>

#include "csrc/base/str.h"
#include "launcher/errors.h"
#include "launcher/network.h"

namespace hvl::launcher {
namespace {

bool IsLoopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.");
}

bool IsUsable(const std::string& address) { return !address.empty() && !IsLoopback(address); }

}  // namespace

std::string SshField(const std::string& ssh_connection, std::size_t index) {
  std::istringstream in(ssh_connection);
  std::string word;
  for (std::size_t i = 0; in >> word; ++i) {
    if (i == index) return word;
  }
  return "";
}

Result<std::string> HeadAddress(const std::string& wanted,
                                const std::vector<std::string>& interfaces,
                                const std::vector<KnownHost>& hosts) {
  if (!wanted.empty()) return wanted;
  if (!interfaces.empty()) {
    const std::string address = AddressOfInterface(interfaces.front());
    if (!address.empty()) return address;
    return Invalid(
        Format("--network-interfaces: interface '{}' of this machine has no address; "
               "--head-address says by which one ranks find hvlrun",
               interfaces.front()));
  }
  const std::vector<std::string> own = OutsideAddresses();
  for (const KnownHost& host : hosts) {
    // With a jump host or address translation between, this is somebody else's.
    const std::string from = SshField(host.hello->ssh_connection, 0);
    if (std::find(own.begin(), own.end(), from) != own.end()) return from;
  }
  for (const KnownHost& host : hosts) {
    if (host.is_this_machine) continue;
    const std::string address = AddressTowards(host.name);
    if (IsUsable(address)) return address;
  }
  return own.empty() ? "127.0.0.1" : own.front();
}

std::string MasterAddress(const KnownHost& first, const std::string& head) {
  if (first.is_this_machine) return head;
  if (IsUsable(first.peer_address)) return first.peer_address;
  std::string server = SshField(first.hello->ssh_connection, 2);
  if (IsUsable(server)) return server;
  std::string known = AddressOf(first.name);
  if (IsUsable(known)) return known;
  return first.hello->addresses.empty() ? head : first.hello->addresses.front();
}

}  // namespace hvl::launcher
