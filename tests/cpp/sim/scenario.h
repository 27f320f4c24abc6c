// What a simulated world is to do and what befalls it: all of it drawn from one seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/plan/planner.h"
#include "csrc/wire/messages.h"

namespace hvl::sim {

/// One collective operation of the program that all ranks run.
struct Operation {
  std::size_t name_index = 0;
  wire::Signature signature;
  bool transient = false;
  /// Allgather: [rank][tensor]; alltoall: [rank][tensor, member it goes to].
  std::vector<std::vector<std::int64_t>> first_dims;
  std::string site;
};

/// How one rank strays from the program at one operation.
struct Deviation {
  std::optional<wire::Signature> signature;  ///< it submits this one instead
  bool elsewhere = false;                    ///< it submits it at another place
  bool skip = false;                         ///< it never submits it
  Duration late{};                           ///< it submits it this much later
};

enum class FaultKind : std::uint8_t {
  kCrash,      ///< the process dies without a word
  kError,      ///< it leaves because of an error of its own
  kLeave,      ///< it shuts down at once, whatever is pending
  kLeaveIdle,  ///< it shuts down before its program ends, with nothing of its own pending
};

struct Fault {
  FaultKind kind = FaultKind::kCrash;
  int rank = 0;
  TimePoint at;
};

struct Step {
  std::vector<std::size_t> operations;  ///< in this rank's order
  bool wait_at_end = false;             ///< go on only when all are done
  bool wait_for_each = false;           ///< submit the next one only when the last one is done
};

struct Scenario {
  std::uint64_t seed = 0;
  int size = 2;
  plan::Options options;
  Duration think{};             ///< most time between two acts of a rank
  Duration latency{};           ///< most time of a frame on its way, usually
  Duration long_latency{};      ///< and now and then
  Duration batch_time{};        ///< most time of a batch on the data plane
  int burst_percent = 0;        ///< chance that a rank submits more before it announces
  int pause_percent = 0;        ///< chance that a rank stands still for a while
  int stale_frame_percent = 0;  ///< chance that a frame of an old generation turns up
  std::vector<std::string> names;
  std::vector<ProcessSetId> name_sets;    ///< of each name: whose operation it is
  std::vector<std::vector<int>> members;  ///< by process set; the first one is the world
  std::vector<Operation> operations;
  std::vector<std::vector<Step>> programs;                      ///< by rank
  std::map<std::pair<int, std::size_t>, Deviation> deviations;  ///< by rank and operation
  std::vector<Fault> faults;
  bool stays = false;  ///< nobody shuts down at the end: in a large world that is all frames
  /// The lowest rank of each host passes on what its ranks and those of other hosts send each
  /// other, also when it has left, until all ranks know that nothing is negotiated any more; then
  /// they are out of reach of each other. Rank 0's host is between all others. 0: all are on one
  /// host.
  int ranks_per_host = 0;

  /// Ranks that may be named as the culprit of a fatal error.
  bool IsCulprit(int rank) const;
  bool HasFault(FaultKind kind) const;
  bool IsMember(ProcessSetId set, int rank) const;
  bool IsLeader(int rank) const { return ranks_per_host > 0 && rank % ranks_per_host == 0; }
  /// Whether what `other` sends to `rank` comes over this leader.
  bool ComesOver(int leader, int other, int rank) const;
  std::string Describe() const;
};

/// `size` 0 = drawn from the seed: 2 to 64, now and then up to 4,096.
Scenario MakeScenario(std::uint64_t seed, int size = 0);

}  // namespace hvl::sim
