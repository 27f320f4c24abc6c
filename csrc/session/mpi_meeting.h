// Rendezvous over MPI, of ranks on several hosts that an MPI launcher has started.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/log.h"
#include "csrc/config/config.h"
#include "csrc/net/common_network.h"
#include "csrc/net/store.h"
#include "horovodlite/interrupt.h"
#include "horovodlite/status.h"

namespace hvl::session {

struct MpiMeeting {
  std::unique_ptr<net::Store> store;  ///< each Join makes the secret of the links anew
  std::string job_id;                 ///< made by rank 0
};

/// Collective: all processes of MPI_COMM_WORLD call it. Opens the MPI plug-in and initialises MPI
/// unless the program has. Errors as plugin::Mpi::Exchange.
Result<MpiMeeting> MeetOverMpi(const config::Config& config, const Interrupted& interrupted,
                               const Logger& logger);

// What the processes tell each other before they meet, for tests.

struct MpiGreeting {
  int rank = 0;
  std::string host_id;
  std::string job_id;  ///< rank 0's counts
  std::vector<net::InterfaceAddress> addresses;

  bool operator==(const MpiGreeting&) const = default;
};

std::string EncodeGreeting(const MpiGreeting& greeting);
/// Mismatch when these are other bytes, of another version, say.
Result<MpiGreeting> DecodeGreeting(std::string_view bytes);

/// Where other hosts reach the host of `own`; "" where all are on one host.
std::string AddressAmong(std::span<const MpiGreeting> all, const MpiGreeting& own);

}  // namespace hvl::session
