// Where the ranks of this process's job meet: the store of hvlrun, or, when somebody else started
// them, a name that they all know; where they are on several hosts, rank 0 or MPI.
#pragma once

#include <memory>
#include <string>

#include "csrc/base/log.h"
#include "csrc/config/config.h"
#include "csrc/config/launch.h"
#include "csrc/net/secret.h"
#include "csrc/net/store.h"
#include "horovodlite/interrupt.h"
#include "horovodlite/status.h"

namespace hvl::session {

struct MeetingPlace {
  std::unique_ptr<net::Store> store;  ///< null for a world of one that nobody started
  net::Secret secret;                 ///< unless the store makes one
  std::string job_id;
};

/// InvalidArgument when nothing tells this job from others, or where rank 0 of several hosts is.
Result<MeetingPlace> FindMeetingPlace(const config::Config& config, const config::Launch& launch,
                                      const Interrupted& interrupted, const Logger& logger);

}  // namespace hvl::session
