// `hvlrun --join head:port`: an agent that nobody calls. It looks for the head by itself, as pods
// do that all start at once.
#pragma once

#include "csrc/base/clock.h"
#include "csrc/net/address.h"
#include "csrc/net/fd.h"
#include "csrc/net/secret.h"
#include "launcher/env_block.h"

namespace hvl::launcher {

struct JoinOptions {
  net::HostPort head;
  Duration patience{};  ///< how long to look for it
};

/// Runs in the second process; `front` is as in front.h. Returns the exit status.
int JoinHead(const JoinOptions& options, const net::Secret& secret, EnvBlock own,
             net::UniqueFd front);

}  // namespace hvl::launcher
