// The public C++ API: a Session is one rank's membership in a world; operations return Handles.
// The Python bindings use exactly this header. Source of the semantics: Horovod's `horovod.torch`
// API.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "horovodlite/interrupt.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl {

/// Where this process stands in the world.
struct World {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  ///< among the ranks of this host
  int cross_rank = 0, cross_size = 1;  ///< among the ranks with this local rank on all hosts
  std::uint64_t generation = 0;        ///< grows with every session of a job
};

/// Result of an allgather, alltoall or reducescatter (of a join only `first_dims`): memory owned by
/// the runtime's result object, row-major.
struct GatheredTensor {
  std::shared_ptr<const void> owner;  ///< keeps `data` alive
  void* data = nullptr;               ///< may be null when the result has no elements
  Shape shape;                        ///< first dimension = sum of the ranks' parts
  DType dtype = DType::kFloat32;
  /// Allgather and alltoall: first dimension of the part from each rank of the process set. Join:
  /// the rank that joined last.
  std::vector<std::int64_t> first_dims;
};

/// A submitted operation. Copyable; copies refer to the same operation. Any thread may use it. A
/// handle outlives its session: shutting down finishes it with Aborted. Dropping it does not cancel
/// anything.
class Handle {
 public:
  class State;

  Handle() = default;
  explicit Handle(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool valid() const { return state_ != nullptr; }
  /// True once the operation has finished, well or badly. Never blocks. Requires valid().
  bool done() const;
  /// As done(), for bookkeeping: asking does not make the runtime look at what is queued, so a loop
  /// that only asks may ask for ever.
  bool finished() const;
  /// Blocks until done and returns the outcome. The waiting thread may do the runtime's work
  /// itself. Must not be called with a lock that other submitters of this process need.
  Status Wait();
  /// As Wait, but returns Aborted when interrupted; the operation goes on.
  Status Wait(const Interrupted& interrupted);
  /// As Wait, but returns Timeout after `timeout`; the operation goes on. A limit of 10 ms or more
  /// may be overrun while this thread runs a small operation that all ranks have agreed on and a
  /// peer is late with its data.
  Status WaitFor(std::chrono::nanoseconds timeout);
  /// Where the runtime allocates results: one entry per tensor of the operation. Requires done()
  /// and an OK outcome.
  const std::vector<GatheredTensor>& gathered() const;

 private:
  std::shared_ptr<State> state_;
};

/// A block of memory that peers on this host can reduce directly, without staging copies. Freed
/// when the last copy of `owner` goes, also after the session has ended. Cache-line aligned,
/// zero-filled.
struct SharedBuffer {
  std::shared_ptr<void> owner;
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Counters since Create; all monotone.
struct SessionCounters {
  std::uint64_t operations_submitted = 0;
  std::uint64_t operations_completed = 0;
  std::uint64_t batches_dispatched = 0;  ///< fused operations handed to the data plane
  std::uint64_t bytes_reduced = 0;       ///< bytes of input of this rank
  std::uint64_t control_frames_sent = 0;
  std::uint64_t control_frames_received = 0;
  std::uint64_t control_bytes_sent = 0;
  std::uint64_t plan_freezes = 0;  ///< how often a plan was frozen, and given up again:
  std::uint64_t plan_thaws = 0;    ///< docs/negotiation.md
};

/// One rank's membership in a world. Any thread may call any method, but not while the session is
/// being destroyed.
class Session {
 public:
  /// Joins the world described by the environment (rank, size, store address, secret, knobs; set by
  /// hvlrun). Without a launcher: a world of one. Collective: blocks until every rank has joined,
  /// at most HVL_START_TIMEOUT; on failure the Status names the ranks that are missing.
  /// `ranks`: only these of the ranks that were started make a world, numbered in ascending order,
  /// this one among them; none = all. All that were started must create their sessions at the same
  /// time, each with the ranks of its own world.
  /// `interrupted` ends the wait for ranks that have not come; this rank may try again then.
  static Result<std::unique_ptr<Session>> Create(std::vector<int> ranks = {},
                                                 const Interrupted& interrupted = {});

  /// Leaves the world. Finishes pending operations with Aborted; peers' pending operations fail
  /// with an error that names this rank. Blocks only for the threads to end (milliseconds).
  virtual ~Session() = default;

  virtual const World& world() const = 0;

  /// Hands an operation to the runtime. Thread-safe; never blocks on a peer. Fails with
  /// InvalidArgument (bad argument, name already in flight), ResourceExhausted (too many
  /// outstanding) or the error that ended the session. Negotiation errors arrive through the
  /// handle. `caller_waits`: the caller calls Wait or WaitFor next, so no thread is woken for it
  /// now; with it, Submit and WaitFor cost what Run does.
  virtual Result<Handle> Submit(Operation operation, bool caller_waits = false) = 0;

  /// The same for an operation that is submitted again and again: it is shared until it has ended,
  /// not copied. Not null.
  virtual Result<Handle> Submit(std::shared_ptr<const Operation> operation,
                                bool caller_waits = false) = 0;

  /// Submit and wait in one call; cheaper than the two for a lone small operation, because no other
  /// thread has to be woken. `gathered` receives what Handle::gathered() would tell; may be null.
  virtual Status Run(Operation operation, std::vector<GatheredTensor>* gathered = nullptr) = 0;

  /// Makes a group of some ranks of the world, to which operations can then be limited. Collective
  /// over the world: every rank adds the same sets in the same order, also sets that it is no
  /// member of. Blocks. InvalidArgument when the ranks are no ranks, or have a set already;
  /// Mismatch when ranks disagree. `interrupted` ends the wait, not the change: the next call for
  /// the same ranks goes on waiting for it.
  virtual Result<ProcessSetId> AddProcessSet(std::vector<int> ranks,
                                             const Interrupted& interrupted = {}) = 0;
  /// The end of a process set, which no operation uses any more. Collective over the world; blocks.
  /// `interrupted` as in AddProcessSet.
  virtual Status RemoveProcessSet(ProcessSetId id, const Interrupted& interrupted = {}) = 0;
  /// Its ranks of the world, ascending; also those of kWorldSet. Local.
  virtual Result<std::vector<int>> ProcessSetRanks(ProcessSetId id) const = 0;

  /// Memory for tensors that are reduced often (gradients). Local. ResourceExhausted when there is
  /// not enough, or the error that ended the session. NotSupported never happens: where the data
  /// plane has no shared memory, plain memory is returned.
  virtual Result<SharedBuffer> Allocate(std::size_t bytes) = 0;

  /// Ends the session as the destructor does, but keeps the object: later calls return Aborted.
  /// Idempotent and thread-safe.
  virtual void Shutdown() = 0;

  /// OK while the session works, else the first cause of its end.
  virtual Status health() const = 0;

  virtual SessionCounters counters() const = 0;

  /// What carries the tensors: "local", "tcp", "mpi" or another one.
  virtual std::string_view data_plane() const = 0;

  /// Starts writing a Chrome-JSON timeline to `path` (local; every rank may have its own file). One
  /// that is being written already is completed as by StopTimeline. Unavailable when the file
  /// cannot be opened; after the end of the session the error that ended it.
  virtual Status StartTimeline(const std::string& path, bool mark_cycles) = 0;
  /// Blocks until the disk has taken what was recorded; the file is complete then. Unavailable when
  /// something of it could not be written. OK when there is no timeline.
  virtual Status StopTimeline() = 0;
};

}  // namespace hvl
