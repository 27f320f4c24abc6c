// Rendezvous of ranks that no launcher of ours has started: one host, one user, one name.
#pragma once

#include <memory>
#include <string>

#include "csrc/base/log.h"
#include "csrc/net/store.h"
#include "horovodlite/interrupt.h"

namespace hvl::net {

/// A job id (CheckJobId) that stands for `job`, any text, and this user.
std::string MeetingId(const std::string& job);

/// A store without a server of its own: the rank that comes first serves the others for as long as
/// the rendezvous lasts, and when it goes before that, the next one does. Ranks meet when they name
/// the same id; each Join makes the secret of the ranks' links anew (Rendezvous::secret).
///
/// Nothing has a place in the file system, and nothing is left when all have gone, however they
/// went. `interrupted` makes Join return Aborted.
std::unique_ptr<Store> MeetByName(std::string meeting_id, Interrupted interrupted, Logger logger);

}  // namespace hvl::net
