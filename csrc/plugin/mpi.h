// The interface of the MPI plug-in (csrc/plugins/mpi): a data plane made of MPI's collectives, and
// a way for ranks of several hosts to find each other.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/collective/backend.h"
#include "horovodlite/interrupt.h"
#include "horovodlite/status.h"

namespace hvl::plugin {

struct MpiOptions {
  int rank = 0;  ///< in the world of horovodlite, which need not be MPI's order
  int size = 1;
  /// The same on all ranks of this session, and on no others at the same time.
  std::string session;
  /// For everything that waits for other ranks before the first operation.
  Duration start_timeout = std::chrono::seconds(120);
  /// How long to look without a pause whether an operation is done.
  Duration spin = std::chrono::microseconds(50);
  /// Offer the core to others while looking: there are more ranks than cores.
  bool yields = false;
  /// Sum in rank order, as all data planes do. Off: MPI_Allreduce, whose order is MPI's affair.
  bool reproducible = true;
  /// The groups in which ranks are summed (tensor::Reduce), the same on all ranks; empty = one.
  std::vector<int> group_ends = {};
  /// Initialise MPI for calls from one thread only (MPI_THREAD_FUNNELED).
  bool one_thread = false;

  // Limits that only tests change; they must agree between ranks.

  /// An allreduce that sends at most this many bytes per rank is gathered by everybody.
  std::size_t small_bytes = 32 << 10;
  /// What is staged at a time: two buffers of this size, where memory is not in one piece.
  std::size_t chunk_bytes = 16 << 20;
  /// Most bytes of one MPI call without staging; counts of MPI are int.
  std::size_t call_bytes = 1 << 30;
};

class Mpi {
 public:
  static constexpr const char* kInterface = "mpi";

  virtual ~Mpi() = default;

  /// Collective over MPI_COMM_WORLD: initialises MPI unless the program has, finds the ranks of
  /// this session in MPI's world, and makes a communicator of them. May be called again after the
  /// backend is gone. Timeout when others do not come; Mismatch when MPI's world does not have the
  /// ranks; NotSupported when threads are not supported as needed, or after an operation that was
  /// interrupted, which MPI cannot take back.
  virtual Result<std::unique_ptr<collective::Backend>> CreateBackend(MpiOptions options,
                                                                     const Logger& logger) = 0;
  /// Collective over MPI_COMM_WORLD: initialises MPI unless the program has, and gives everybody
  /// what each process of MPI's world says, by MPI's rank. Of `options` counts what is about
  /// waiting and threads. Timeout when others do not come; Aborted when interrupted; NotSupported
  /// as CreateBackend. After a Timeout or Aborted MPI cannot be used any more.
  virtual Result<std::vector<std::string>> Exchange(const std::string& own,
                                                    const MpiOptions& options,
                                                    const Interrupted& interrupted) = 0;
  /// Whether MPI lets several threads call it at the same time (MPI_THREAD_MULTIPLE). After the
  /// first CreateBackend or Exchange.
  virtual bool threads_supported() const = 0;
};

}  // namespace hvl::plugin
