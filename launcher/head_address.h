// By which address the ranks on other hosts reach the head of their job, and rank 0.
#pragma once

#include <string>
#include <vector>

#include "horovodlite/status.h"
#include "launcher/agent_frames.h"

namespace hvl::launcher {

/// A host of the job as its agent describes it.
struct KnownHost {
  std::string name;  ///< in the list of hosts
  bool is_this_machine = false;
  const Hello* hello = nullptr;
  std::string peer_address;  ///< by which its agent came; "" = it was called
};

/// The first that is known: `wanted` (--head-address); an address of the first of `interfaces`;
/// where a log-in of ssh came from; the end of a way to one of the hosts; any address that is not
/// the loopback's. InvalidArgument when an interface has none.
Result<std::string> HeadAddress(const std::string& wanted,
                                const std::vector<std::string>& interfaces,
                                const std::vector<KnownHost>& hosts);

/// Where rank 0 is found by the others, whose host is the first; `head` is the head's address.
std::string MasterAddress(const KnownHost& first, const std::string& head);

/// Field `index` of SSH_CONNECTION ("client port server port"); "" when it has none.
std::string SshField(const std::string& ssh_connection, std::size_t index);

}  // namespace hvl::launcher
