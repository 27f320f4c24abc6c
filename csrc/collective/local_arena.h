// A rank's shared memory: an anonymous file that its peers map as well. It has no name, so nothing
// can be left behind and nobody else can open it; neither the size nor the mount of /dev/shm
// matters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "csrc/collective/local_layout.h"
#include "csrc/net/fd.h"
#include "horovodlite/status.h"

namespace hvl::collective {

/// Where a rank stands, and what all ranks must agree on.
struct ArenaIdentity {
  int rank = 0;
  int ranks = 1;
  int first_rank = 0;  ///< the number in the world of rank 0 here; errors name ranks of the world
  std::uint64_t generation = 0;
  std::size_t staging_bytes = 0;
};

/// Processors that a rank may run on, one bit each, up to 1024.
using CpuMask = std::array<std::uint64_t, 16>;
CpuMask AllowedCpus();

/// One arena, mapped into this process. Not thread-safe, except Commit and Release on ranges that
/// do not overlap.
class Arena {
 public:
  /// Makes this rank's own arena; all but the heap and the lane of the process sets is committed,
  /// so that a lack of memory is this error (ResourceExhausted) and never a signal later.
  static Result<std::unique_ptr<Arena>> Create(const ArenaIdentity& identity,
                                               std::size_t words_bytes, std::size_t heap_bytes);
  /// Maps the arena of rank `owner` after checking that its owner cannot shrink it and that it
  /// belongs to the same world with the same sizes; otherwise the error names the rank.
  static Result<std::unique_ptr<Arena>> Open(const net::UniqueFd& fd, int owner,
                                             const ArenaIdentity& identity,
                                             std::size_t words_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const ArenaLayout& layout() const { return layout_; }
  /// The owner's, as it stated them; not to be trusted for more than advice.
  const CpuMask& cpus() const { return cpus_; }
  int fd() const { return fd_.get(); }  ///< own arena only, else -1

  std::byte* words() const;  ///< layout().words_bytes, after the header
  std::byte* payload(Lane lane, unsigned parity) const {
    return base_ + layout_.lane(lane).payload_offset + (parity % 2) * kMaxPayloadBytes;
  }
  std::byte* staging(Lane lane) const { return base_ + layout_.lane(lane).staging_offset; }
  std::byte* heap() const { return base_ + layout_.heap_offset; }

  /// Own arena only. Gives payloads and staging of the lane memory, unless they have some, or
  /// returns ResourceExhausted.
  Status CommitLane(Lane lane);
  /// Own arena only. Gives the range memory, or returns ResourceExhausted.
  Status Commit(std::byte* begin, std::size_t bytes);
  /// Own arena only. Takes the memory of whole pages back; they read as zero again.
  void Release(std::byte* begin, std::size_t bytes);

 private:
  Arena(net::UniqueFd fd, std::byte* base, const ArenaLayout& layout)
      : fd_(std::move(fd)), base_(base), layout_(layout) {}
  void AdviseHugePages() const;

  net::UniqueFd fd_;
  std::byte* base_;
  ArenaLayout layout_;
  CpuMask cpus_{};
  std::array<bool, kLanes> committed_{};
};

}  // namespace hvl::collective
