// Rendezvous of ranks that no launcher of ours has started: by a name on one host, or at rank 0.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "csrc/base/log.h"
#include "csrc/net/address.h"
#include "csrc/net/secret.h"
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

/// Where ranks of several hosts meet when no launcher of ours serves them.
struct HeadPlace {
  HostPort address;      ///< of rank 0's host, as all ranks know it
  std::string networks;  ///< HVL_NETWORK of this rank: where rank 0 listens, should it have to
  Secret secret;         ///< of the job, or made of what everybody knows
  std::string job_id;
  Duration silence_limit = std::chrono::seconds(2);  ///< see OpenStore
};

/// A store that rank 0 serves on TCP for as long as each rendezvous lasts; the others wait until it
/// does. Each Join makes the secret of the links anew, from the secret of the place and 32 random
/// bytes of every rank.
std::unique_ptr<Store> MeetAtRankZero(HeadPlace place, Interrupted interrupted, Logger logger);

/// A key for one purpose, made of `base` and of any text.
Secret KeyFor(std::string_view purpose, std::string_view text, const Secret& base = {});

}  // namespace hvl::net
