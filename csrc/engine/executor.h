// The executor role: runs batches on the data plane, in order, and ends the parts they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/status_page.h"
#include "csrc/collective/backend.h"
#include "csrc/engine/batch_queue.h"
#include "csrc/engine/counters.h"
#include "csrc/engine/process_sets.h"
#include "csrc/engine/registry.h"
#include "csrc/engine/tracer.h"
#include "horovodlite/status.h"

namespace hvl::engine {

/// Not thread-safe: every call needs the executor role.
class Executor {
 public:
  Executor(collective::Backend& backend, ProcessSets& sets, Registry& registry, BatchQueue& queue,
           Tracer& tracer, Counters& counters, StatusPage* status)
      : sets_(sets),
        planes_(backend, sets),
        registry_(registry),
        queue_(queue),
        tracer_(tracer),
        counters_(counters),
        status_(status) {}

  /// Runs the next batch, if it has at most `max_bytes`, or waits at its gate until it is called
  /// back; unless it `may_sleep`, it waits there for no longer than a spin. Blocks until the data
  /// plane is done with it. False when there was none, or its gate is still closed.
  bool RunNext(std::size_t max_bytes, bool may_sleep);
  /// Gives up what depends on the data plane, which is about to go.
  void Close() { planes_.Close(); }

 private:
  Result<collective::GateResult> PassGate(const Work& work, bool may_sleep);
  void NoteStarted(const Work& work);
  Status Perform(Work& work);
  Status Allreduce(const Work& work, const DataPlane& plane);
  Status Broadcast(const Work& work, const DataPlane& plane);
  Status Allgather(Work& work, const DataPlane& plane);
  Status Reducescatter(Work& work, const DataPlane& plane);
  Status Alltoall(Work& work, const DataPlane& plane);
  Status Join(Work& work);
  Status ChangeSets(const Work& work);
  Result<std::byte*> Zeros(std::size_t bytes);
  void End(const Work& work, const Status& status);

  ProcessSets& sets_;
  DataPlanes planes_;
  Registry& registry_;
  BatchQueue& queue_;
  Tracer& tracer_;
  Counters& counters_;
  StatusPage* const status_;          ///< may be null
  std::uint64_t noted_sequence_ = 0;  ///< of the batch that was noted there last
  TimePoint noted_dispatched_at_{};   ///< likewise

  // Kept between batches, so that a small one allocates nothing.
  std::vector<collective::ReducePiece> reduce_pieces_;
  std::vector<collective::BroadcastPiece> broadcast_pieces_;
  std::vector<collective::GatherPiece> gather_pieces_;
  std::vector<collective::ScatterPiece> scatter_pieces_;
  std::vector<collective::ExchangePiece> exchange_pieces_;
  std::vector<std::size_t> part_bytes_;      ///< what the pieces above refer to
  std::vector<std::int64_t> part_elements_;  ///< likewise
  std::unique_ptr<std::byte[]> zeros_;       ///< what a rank that has joined contributes
  std::size_t zeros_size_ = 0;
  std::vector<StatePtr> ended_;
};

}  // namespace hvl::engine
