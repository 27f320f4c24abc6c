// Who this process is: checks rank and size of the world, of this host and across hosts, and fills
// in what follows from them.
#pragma once

#include "csrc/config/config.h"
#include "horovodlite/status.h"

namespace hvl::config {

/// `config` holds what the environment says; `env` tells what was said at all. InvalidArgument
/// names what is missing or contradictory. The rules are those of Config::Parse.
Status CompleteIdentity(const EnvSource& env, Config* config);

}  // namespace hvl::config
