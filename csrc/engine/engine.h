// Runs the pipeline of one session: submission queue, negotiation (coordinator role), execution
// (executor role), completion. Two threads serve the roles; a thread that waits for a result may
// take them over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/base/status_page.h"
#include "csrc/collective/backend.h"
#include "csrc/net/mesh.h"
#include "csrc/plan/planner.h"
#include "csrc/trace/trace.h"
#include "horovodlite/session.h"
#include "horovodlite/status.h"

namespace hvl::engine {

struct Options {
  std::size_t max_outstanding = 1 << 20;  ///< operations submitted and not finished
  /// How long a waiting thread looks for work before it sleeps.
  Duration spin = std::chrono::microseconds(50);
  /// How long it holds on to its core meanwhile: as long as the answer of a peer takes that runs on
  /// another core. After it, the thread offers its core to others at every turn, because the peer
  /// may be one of them.
  Duration keep_core = std::chrono::microseconds(5);
  /// The processor that hvl-coord and hvl-exec keep to; nothing = all that the process may use. A
  /// processor that is refused is warned about. Callers that do the engine's work stay where they
  /// are.
  std::optional<int> thread_processor = {};
  /// As SetTrace, from the first event on; null = none.
  std::shared_ptr<trace::Sink> trace = nullptr;
  bool mark_cycles = false;
  /// Called with each sample of the planner's tuner, from the thread with the coordinator role.
  std::function<void(const plan::TunerSample&)> on_sample = nullptr;
  /// Where this rank tells its launcher what it does; null = nowhere. Outlives the engine.
  StatusPage* status = nullptr;
};

class Engine {
 public:
  /// Takes the parts of one session. Starts the threads hvl-coord and hvl-exec.
  /// ResourceExhausted when the system gives no more threads.
  static Result<std::unique_ptr<Engine>> Start(Options options, std::unique_ptr<net::Mesh> mesh,
                                               std::unique_ptr<plan::Planner> planner,
                                               std::unique_ptr<collective::Backend> backend,
                                               Logger logger, const Clock& clock);
  virtual ~Engine() = default;  ///< as Stop

  /// Any thread; never blocks on a peer. See Session::Submit. `caller_waits`: the caller calls
  /// Handle::Wait next, so no thread needs to be woken now.
  virtual Result<Handle> Submit(Operation&& operation, bool caller_waits) = 0;
  virtual Result<Handle> Submit(std::shared_ptr<const Operation> operation, bool caller_waits) = 0;
  /// See Session. Collective; block.
  virtual Result<ProcessSetId> AddProcessSet(std::vector<int> ranks,
                                             const Interrupted& interrupted = {}) = 0;
  virtual Status RemoveProcessSet(ProcessSetId id, const Interrupted& interrupted = {}) = 0;
  virtual Result<std::vector<int>> ProcessSetRanks(ProcessSetId id) const = 0;
  virtual Result<SharedBuffer> Allocate(std::size_t bytes) = 0;
  /// Finishes everything pending with Aborted, tells the peers, ends the threads. Idempotent.
  virtual void Stop() = 0;
  virtual Status health() const = 0;
  virtual SessionCounters counters() const = 0;
  /// Replaces the sink that receives events; null = none. Any thread.
  virtual void SetTrace(std::shared_ptr<trace::Sink> sink, bool mark_cycles) = 0;
  /// True in a forked child of the process that started the engine: there every call fails with a
  /// clear error, and the destructor takes nothing apart.
  virtual bool in_child() const = 0;
};

}  // namespace hvl::engine
