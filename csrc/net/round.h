// One rendezvous as a pure state: who has come, who is missing, whether they fit together. Used by
// MemoryStore and by the store server; no IO, threads or clock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "horovodlite/status.h"

namespace hvl::net {

inline constexpr std::size_t kMaxBlobBytes = 1 << 20;
/// All blobs of one rendezvous: what the answer to each rank holds.
inline constexpr std::size_t kMaxTableBytes = 256 << 20;

/// InvalidArgument or ResourceExhausted when this request alone cannot take part in any round.
Status CheckJoin(int rank, int size, std::size_t blob_bytes);

class Round {
 public:
  /// Requires CheckJoin. Mismatch when `rank` is here already or `size` differs: then the ranks
  /// contradict each other, and the whole round has failed.
  Status Enter(int rank, int size, std::string blob);
  void Leave(int rank);

  bool complete() const {
    return !blobs_.empty() && blobs_.size() == static_cast<std::size_t>(size_);
  }
  /// "1, 4-7": who has not come. Requires at least one who has.
  std::string MissingRanks() const;
  /// Requires complete().
  std::vector<std::string> TakeBlobs();

 private:
  int size_ = 0;  // of the first rank that came
  std::size_t table_bytes_ = 0;
  std::map<int, std::string> blobs_;  // by rank
};

/// The Timeout of a rank that waited in vain.
Status JoinTimeout(int rank, int size, const std::string& missing_ranks);

}  // namespace hvl::net
