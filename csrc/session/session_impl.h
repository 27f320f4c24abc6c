// Composition root: builds every part of a session from a Config and joins them. Session::Create()
// is this with the process environment; tests pass their own store and config.
#pragma once

#include <memory>

#include "csrc/base/log.h"
#include "csrc/config/config.h"
#include "csrc/net/secret.h"
#include "csrc/net/store.h"
#include "horovodlite/session.h"
#include "horovodlite/status.h"

namespace hvl::session {

/// Collective, as Session::Create. `store` is used during the call only; may be null when size
/// is 1.
Result<std::unique_ptr<Session>> CreateSession(const config::Config& config, net::Store* store,
                                               const net::Secret& secret,
                                               std::shared_ptr<LogSink> sink);

}  // namespace hvl::session
