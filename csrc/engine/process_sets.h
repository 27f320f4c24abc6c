// The process sets of this session as one rank knows them: what Submit checks against, and the data
// planes that the executor runs their operations on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/mutex.h"
#include "csrc/collective/backend.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::engine {

/// Some ranks of the world, as one rank sees them.
struct ProcessSet {
  ProcessSetId id = kWorldSet;
  std::vector<int> ranks;  ///< of the world, ascending
  int position = -1;       ///< of this rank among them; -1 = it is no member

  int size() const { return static_cast<int>(ranks.size()); }
  bool included() const { return position >= 0; }
  /// Where a rank of the world stands among them; -1 = nowhere.
  int PositionOf(int rank) const;
  /// "process set 1 [0, 2]"
  std::string ToString() const;
};
using ProcessSetPtr = std::shared_ptr<const ProcessSet>;  // shared with operations in flight

/// Thread-safe.
class ProcessSets {
 public:
  ProcessSets(int rank, int size);

  const ProcessSetPtr& world() const { return world_; }
  /// InvalidArgument when there is none.
  Result<ProcessSetPtr> Find(ProcessSetId id) const;
  /// The set of exactly these ranks.
  std::optional<ProcessSetId> FindRanks(std::span<const int> ranks) const;
  ProcessSetPtr Add(ProcessSetId id, std::vector<int> ranks);
  void Remove(ProcessSetId id);

 private:
  const int rank_;
  const ProcessSetPtr world_;
  mutable Mutex mutex_;
  std::map<ProcessSetId, ProcessSetPtr> sets_ HVL_GUARDED_BY(mutex_);
};

/// A process set and the means to run its operations.
struct DataPlane {
  ProcessSetPtr set;
  collective::Backend* backend = nullptr;
};

/// Not thread-safe: every call needs the executor role. Close before the world's backend goes.
class DataPlanes {
 public:
  DataPlanes(collective::Backend& world_backend, ProcessSets& sets)
      : sets_(sets), world_{sets.world(), &world_backend} {}

  const DataPlane& world() const { return world_; }
  /// Of a set that this rank is a member of. Made when it is needed, unless it has been added.
  Result<const DataPlane*> Of(ProcessSetId id);
  /// Does nothing for a set that this rank is no member of.
  Status Add(const ProcessSetPtr& set);
  void Remove(ProcessSetId id);
  void Close() { parts_.clear(); }

 private:
  struct Part {
    std::unique_ptr<collective::Backend> backend;
    DataPlane plane;
  };

  ProcessSets& sets_;
  const DataPlane world_;
  std::map<ProcessSetId, Part> parts_;
};

}  // namespace hvl::engine
