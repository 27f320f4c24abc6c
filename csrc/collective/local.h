// The data plane of one host: ranks reduce each other's memory directly, or through small blocks of
// shared memory. No sockets, no files with names.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/collective/backend.h"
#include "csrc/net/mesh.h"
#include "horovodlite/status.h"

namespace hvl::collective {

struct LocalOptions {
  /// Shared memory per rank through which tensors outside of shared memory pass. The same on all
  /// ranks.
  std::size_t staging_bytes = std::size_t{4} << 20;
  /// How long a waiting rank spins before it sleeps. Taken as 0 when the ranks outnumber the
  /// processors that they may run on.
  Duration spin = std::chrono::microseconds(50);
  /// Addresses reserved for Allocate; memory is used only as it is allocated. Unset = as much as
  /// this machine has memory.
  std::optional<std::size_t> heap_bytes = std::nullopt;
  /// The groups in which ranks are summed (tensor::Reduce), the same on all ranks; empty = one.
  std::vector<int> group_ends = {};
};

/// Of the ranks on this host, renumbered from 0; errors name ranks of the world. Its Reducescatter
/// may put the output where this rank's part of the input lies.
/// Collective, during set-up of `mesh`, which is used during the call only; a rank that is alone
/// on its host needs nothing from it. Mismatch names the rank whose options differ;
/// ResourceExhausted says what is missing.
Result<std::unique_ptr<Backend>> CreateLocalBackend(net::Mesh& mesh, const LocalOptions& options,
                                                    const Logger& logger);

}  // namespace hvl::collective
