// Control messages as values. codec.h turns them into bytes and back; docs/negotiation.md tells the
// protocol that they belong to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::wire {

using Bytes = std::vector<std::byte>;

// Limits, enforced when encoding (our bug) and decoding (peer's fault).
inline constexpr std::size_t kMaxFrameBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxNameBytes = 4096;
inline constexpr std::size_t kMaxDimensions = 64;
/// An encoded signature: a group of some 10^5 tensors.
inline constexpr std::size_t kMaxSignatureBytes = std::size_t{8} << 20;
inline constexpr std::size_t kMaxMessageBytes = 16384;  ///< text of a Status; longer ones are cut
inline constexpr std::size_t kMaxSiteBytes = 256;       ///< of a longer one only the end is sent
/// First dimensions that one rank announces for one operation.
inline constexpr std::size_t kMaxFirstDims = std::size_t{1} << 20;
/// Ranks of an alltoall: a decision carries the number of rows from each to each.
inline constexpr std::size_t kMaxAlltoallRanks = 2048;
/// Ids are smaller than this: the largest HVL_CACHE_CAPACITY.
inline constexpr std::uint32_t kMaxIds = std::uint32_t{1} << 24;

/// Operations of all kinds but these have one tensor or more.
constexpr bool HasTensors(OpKind kind) {
  return kind != OpKind::kBarrier && kind != OpKind::kJoin && kind != OpKind::kProcessSet;
}

struct TensorSignature {
  DType dtype = DType::kFloat32;
  Layout layout = 0;
  /// Allgather, alltoall: without the first dimension, which may differ between ranks; see Fresh.
  Shape shape;

  bool operator==(const TensorSignature&) const = default;
};

/// All that ranks must agree on for one operation. Interned by the coordinator: after its first use
/// a signature costs only its id.
struct Signature {
  OpKind kind = OpKind::kAllreduce;
  std::string name;  ///< not empty, UTF-8, at most kMaxNameBytes
  /// kProcessSet: the set that is added or removed, not the world; kJoin: always the world.
  ProcessSetId process_set = kWorldSet;
  /// kProcessSet only: the members of the set that is added, ascending; none = the set is removed.
  std::vector<std::int32_t> ranks;
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int32_t root_rank = 0;
  std::vector<TensorSignature> tensors;  ///< none for barrier, join and set, else one or more

  bool operator==(const Signature&) const = default;
};

/// Ids first, first + 1, ..., first + count - 1.
struct IdRun {
  std::uint32_t first = 0;
  std::uint32_t count = 1;

  bool operator==(const IdRun&) const = default;
};

/// An operation announced with its full signature.
struct Fresh {
  Signature signature;
  /// Allgather: one per tensor. Alltoall: per tensor the rows for each rank of the set. Else empty.
  std::vector<std::int64_t> first_dims;
  bool transient = false;  ///< not worth an id
  std::string site = {};   ///< of the submission, for messages; may be empty

  bool operator==(const Fresh&) const = default;
};

/// An operation that blocks the program of a rank: the one thread that has submitted all unnamed
/// operations of the rank waits for it, without a limit.
struct Blocked {
  std::string name;
  ProcessSetId process_set = kWorldSet;  ///< whose operation it is
  bool alone = false;  ///< that thread has submitted all other operations of the rank as well

  bool operator==(const Blocked&) const = default;
};

/// Participant to coordinator: this rank has submitted these operations.
struct Announce {
  std::uint64_t generation = 0;
  std::uint32_t epoch = 0;         ///< of the ids in `known`
  std::uint64_t acknowledged = 0;  ///< number of the last Decide that this rank had applied
  std::vector<IdRun> known;        ///< ascending, with gaps between the runs
  /// First dimensions of the allgathers among `known`, in the order of ids and tensors.
  std::vector<std::int64_t> known_first_dims;
  std::vector<Fresh> fresh;
  /// As of this message, if it has lasted for long; none = nothing, or not yet.
  std::optional<Blocked> blocked;

  bool operator==(const Announce&) const = default;
};

/// Operations, or some tensors of one operation, that belong to a batch.
struct Member {
  /// Known operations; or, with a name, the id which that name has from now on.
  std::optional<std::uint32_t> id;
  std::uint32_t count = 1;  ///< operations id, id + 1, ...; 1 with a name or a range
  std::string name;         ///< of an operation of the batch's process set; empty = known by its id
  struct TensorRange {
    std::uint32_t first_tensor = 0;
    std::uint32_t tensor_count = 1;

    bool operator==(const TensorRange&) const = default;
  };
  std::optional<TensorRange> range;  ///< absent = all tensors of the operation
  /// With a name (the same one) only, while ranks have joined: what they, who did not submit it,
  /// take part in. With an id that the name has already: what the id means from now on.
  std::optional<Signature> signature;

  bool operator==(const Member&) const = default;
};

struct DecidedBatch {
  std::vector<Member> members;
  /// Allgather: first dimension of each tensor on each rank of the set, in the order
  /// [tensor][rank]; alltoall: [tensor][from][to]; join: the rank that joined last.
  std::vector<std::int64_t> first_dims;
  ProcessSetId process_set = kWorldSet;  ///< ranks outside of it do not take part

  bool operator==(const DecidedBatch&) const = default;
};

/// An operation that ends without running, on every rank that has submitted it or will next.
struct Failure {
  /// Empty = all unnamed operations of the set that have not run, but for joins: their round ends.
  std::string name;
  Status status;
  ProcessSetId process_set = kWorldSet;  ///< whose ranks it concerns

  bool operator==(const Failure&) const = default;
};

/// A rank has left by shutdown: nothing more can run.
struct Departure {
  int rank = 0;
  std::uint64_t batches_finished = 0;  ///< on that rank

  bool operator==(const Departure&) const = default;
};

/// Batches that start together, because an operation of theirs has tensors in several of them;
/// usually one.
struct Bucket {
  std::vector<DecidedBatch> batches;  ///< of known operations of the world, without dimensions

  bool operator==(const Bucket&) const = default;
};

/// A plan: from here on the ranks start its buckets by themselves, again and again in this order,
/// and announce nothing. docs/negotiation.md tells how it freezes and thaws.
struct Freeze {
  std::uint32_t plan = 0;       ///< 1, 2, 3, ...
  std::vector<Bucket> buckets;  ///< together each operation once, whole
  std::uint64_t hash = 0;       ///< of the buckets and of the signatures that the ids stand for

  bool operator==(const Freeze&) const = default;
};

/// Why a rank stops starting buckets of a plan.
enum class ThawReason : std::uint8_t {
  kStopped,    ///< because the coordinator says so
  kOperation,  ///< an operation that is not in the plan
  kSignature,  ///< one that is, with another signature
  kMissing,    ///< an operation came again before the plan was through: another one is missing
  kAwaited,    ///< a thread waits for part of a bucket
  kStalled,    ///< nothing has moved for long
  kLeft,       ///< the rank shuts down
  kTuned,      ///< the coordinator tries other buckets
};
inline constexpr std::size_t kThawReasons = 8;

/// The plan is over: its first `started` buckets run on all ranks, and no further one on any.
struct Thaw {
  std::uint32_t plan = 0;
  std::uint64_t started = 0;  ///< buckets since the plan froze, over all rounds
  int rank = 0;               ///< who stopped first, and why
  ThawReason reason = ThawReason::kStopped;

  bool operator==(const Thaw&) const = default;
};

/// Coordinator to every participant, the same for all. Applied in the order of the fields.
struct Decide {
  std::uint64_t generation = 0;
  std::uint64_t number = 0;          ///< 1, 2, 3, ...
  std::uint64_t first_sequence = 0;  ///< of batches[0]; the others follow
  std::vector<DecidedBatch> batches;
  std::vector<Failure> failures;
  std::optional<Freeze> freeze;
  std::optional<std::uint32_t> stop;  ///< this plan: start nothing more of it and say so
  std::optional<Thaw> thaw;
  bool starts_epoch = false;  ///< after this message all ids are void and the next epoch begins
  std::optional<Departure> departure;

  bool operator==(const Decide&) const = default;
};

/// Participant to coordinator, once per plan: this rank starts no more of its buckets.
struct Stopped {
  std::uint64_t generation = 0;
  std::uint32_t plan = 0;
  std::uint64_t started = 0;  ///< buckets since the plan froze, over all rounds
  ThawReason reason = ThawReason::kStopped;

  bool operator==(const Stopped&) const = default;
};

/// From any rank to every other one, as its last message.
struct Bye {
  std::uint64_t generation = 0;
  std::uint64_t batches_finished = 0;
  std::uint64_t batches_begun = 0;  ///< the last batch of its own that it had to run
  Status cause;                     ///< OK = shutdown, else the error that made the rank leave

  bool operator==(const Bye&) const = default;
};

/// InvalidArgument when a signature cannot be sent: what is wrong, and the limit.
Status CheckSignature(const Signature& signature);

}  // namespace hvl::wire
