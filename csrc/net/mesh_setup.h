// One message to every peer and one from each, over the control links, before control frames flow.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/net/fd.h"
#include "csrc/net/frames.h"
#include "horovodlite/status.h"

namespace hvl::net {

struct SetupLink {
  int rank = 0;
  int socket = -1;
  int process_fd = -1;  ///< see WatchProcess
};

struct SetupMessage {
  std::string payload;
  UniqueFd fd;
};

/// Collective: the frame of every peer has the same kind and payload size. Sends `fd` along when
/// it is not negative. Reads nothing beyond the one frame, so that what follows stays in the
/// sockets. Returns the messages in the order of `links`. Errors name the rank.
Result<std::vector<SetupMessage>> ExchangeSetup(std::span<const SetupLink> links, FrameKind kind,
                                                const std::string& payload, int fd,
                                                TimePoint deadline);

}  // namespace hvl::net
