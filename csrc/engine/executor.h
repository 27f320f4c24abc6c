// The executor role: runs batches on the data plane, in order, and ends the parts they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/collective/backend.h"
#include "csrc/engine/batch_queue.h"
#include "csrc/engine/counters.h"
#include "csrc/engine/registry.h"
#include "csrc/engine/tracer.h"
#include "horovodlite/status.h"

namespace hvl::engine {

/// Not thread-safe: every call needs the executor role.
class Executor {
 public:
  Executor(collective::Backend& backend, int size, Registry& registry, BatchQueue& queue,
           Tracer& tracer, Counters& counters)
      : backend_(backend),
        size_(size),
        registry_(registry),
        queue_(queue),
        tracer_(tracer),
        counters_(counters) {}

  /// Runs the next batch, if it has at most `max_bytes`. Blocks until the data plane is done with
  /// it. False when there was none.
  bool RunNext(std::size_t max_bytes);

 private:
  Status Perform(Work& work);
  Status Allreduce(const Work& work);
  Status Broadcast(const Work& work);
  Status Allgather(Work& work);
  Status LayOutGathered(Work& work);
  void End(const Work& work, const Status& status);

  collective::Backend& backend_;
  const int size_;
  Registry& registry_;
  BatchQueue& queue_;
  Tracer& tracer_;
  Counters& counters_;

  // Kept between batches, so that a small one allocates nothing.
  std::vector<collective::ReducePiece> reduce_pieces_;
  std::vector<collective::BroadcastPiece> broadcast_pieces_;
  std::vector<collective::GatherPiece> gather_pieces_;
  std::vector<std::size_t> rank_bytes_;
  std::vector<StatePtr> ended_;
};

}  // namespace hvl::engine
