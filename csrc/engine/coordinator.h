// The coordinator role: takes submissions to the planner, carries its messages, hands its batches
// to the executor role, and ends the session when the world breaks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/base/status_page.h"
#include "csrc/collective/backend.h"
#include "csrc/engine/batch_queue.h"
#include "csrc/engine/counters.h"
#include "csrc/engine/registry.h"
#include "csrc/engine/ticket_table.h"
#include "csrc/engine/tracer.h"
#include "csrc/net/mesh.h"
#include "csrc/plan/planner.h"
#include "horovodlite/status.h"

namespace hvl::engine {

/// What the holder of the role lets every thread know.
struct CoordinatorNews {
  std::atomic<TimePoint> deadline{TimePoint::max()};  ///< when Step is due, whatever happens
  std::atomic<bool> gathering{false};  ///< ready tensors wait for the next batch to finish
  std::atomic<bool> frozen{false};     ///< a plan is frozen, so the planner wants to know who waits
};

/// Not thread-safe: every call needs the coordinator role.
class Coordinator final : private net::MeshReceiver {
 public:
  /// The parts outlive the coordinator. Of the backend only Abort and Withdraw are used.
  struct Parts {
    net::Mesh& mesh;
    plan::Planner& planner;
    collective::Backend& backend;
    Registry& registry;
    BatchQueue& queue;
    Tracer& tracer;
    Counters& counters;
    CoordinatorNews& news;
    const Clock& clock;
    std::function<void(const plan::TunerSample&)> on_sample;  ///< may be empty
    StatusPage* status;                                       ///< may be null
  };
  Coordinator(Parts parts, Logger logger) : parts_(std::move(parts)), logger_(std::move(logger)) {}

  /// Does everything there is to do now; never blocks. Leaves the links for a little later when a
  /// batch can run. True when anything moved.
  bool Step();
  /// Only takes in what this rank's threads have left (submissions, finished batches): no look at
  /// the links.
  void StepLocal();
  /// Ends the session: every operation finishes with `cause` as soon as nothing uses its memory,
  /// and the peers are told `farewell` (OK = an orderly goodbye). Only the first call counts.
  void End(const Status& cause, const Status& farewell);

 private:
  void OnFrame(int peer, std::span<const std::byte> frame) override;
  void OnPeerLost(int peer, const Status& cause) override;

  void NoticeTracing();
  bool HasLocal() const;
  void TakeLocal();
  bool Tick();
  void TakeSubmissions();
  void SubmitTaken();
  void NoteTaken();
  void NoteFailure(const Status& error);
  void NoteEnd(const Status& cause, const Status& farewell);
  void TakeNews();
  void Act();
  void Send(const std::vector<plan::Outgoing>& frames);
  void Dispatch(plan::Batch&& batch);
  void Withdraw(std::uint64_t sequence);
  void ForgetStarted(std::uint64_t finished);
  void FinishUnplanned(const plan::Completion& completion);
  void UpdateDeadline();
  void EndParts(const StatePtr& state, int count, const Status& status);

  /// A batch that this rank has started without a decision, and that may still be withdrawn.
  struct Started {
    std::uint64_t sequence;
    std::optional<plan::Gate> gate;
    std::size_t entry_count;
  };
  struct StartedEntry {
    plan::Ticket ticket;
    int part_count;
    bool ends;  ///< all other parts of the operation were in a batch
  };

  const Parts parts_;
  const Logger logger_;

  TimePoint now_{};        ///< of the current step
  TimePoint polled_at_{};  ///< when a step last looked at the links
  plan::Effects effects_;
  TicketTable waiting_;  ///< operations with parts that are in no batch yet, or in a started one
  std::vector<StatePtr> taken_, ended_;
  std::vector<Awaited> awaited_;
  std::deque<Started> started_;
  std::deque<StartedEntry> started_entries_;  ///< of those batches, in the same order
  bool starts_ = false;                       ///< batches come from a frozen plan
  std::uint64_t reported_sequence_ = 0;       ///< finished batches that the planner knows of
  bool traces_ = false;
  bool ended_session_ = false;
};

}  // namespace hvl::engine
