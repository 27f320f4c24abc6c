// Negotiation as a pure state machine: which operations are ready on all ranks, in which order they
// run and how they are fused; the same answer on every rank. No threads, clocks, sockets or
// randomness in this room.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/plan/shared_signature.h"
#include "csrc/plan/tuner.h"
#include "csrc/wire/messages.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::plan {

using Ticket = std::uint64_t;  ///< an operation submitted by this rank

/// What to do when ranks submit unnamed operations of one number at different places.
enum class UnnamedSites : std::uint8_t {
  kError,  ///< a mismatch
  kWarn,   ///< a notice, once per pair of places
  kIgnore,
};

struct Options {
  std::size_t fusion_threshold_bytes = std::size_t{128} << 20;  ///< 0 = never fuse
  std::size_t intern_capacity = 65536;                          ///< signatures remembered; 0 = none
  bool stall_check = true;
  Duration stall_warning = std::chrono::seconds(60);
  Duration stall_shutdown{};  ///< 0 = never; otherwise stalled operations fail after it
  UnnamedSites unnamed_sites = UnnamedSites::kError;
  /// Identical instances of a program's named operations after which its plan freezes; 0 = never.
  /// Anything else only where the engine honours Batch::gate and Effects::withdraw.
  int freeze_after = 0;
  std::size_t bucket_bytes = std::size_t{8} << 20;       ///< of a frozen plan, at most
  std::size_t edge_bucket_bytes = std::size_t{1} << 20;  ///< of its first and its last bucket
  /// Tries other sizes of buckets while a plan is frozen, and keeps the best (tuner.h).
  bool tune = false;
  TunerOptions tuner = {};
  /// How long a thread may wait for part of a bucket before the plan thaws.
  Duration patience = std::chrono::milliseconds(1);
};

struct Submission {
  Ticket ticket = 0;
  SharedSignature signature;             ///< name not in flight on this rank (the engine checks)
  std::vector<std::int64_t> first_dims;  ///< see wire::Fresh
  bool transient = false;                ///< a name that will not come again: not worth interning
  std::string site = {};                 ///< see Operation::site
  /// Of an unnamed operation: how many rounds of its set had ended when it was numbered; see
  /// Effects::ended_rounds.
  std::uint64_t round = 0;
};

/// Who waits for an operation, as far as this rank can know: threads that have submitted nothing so
/// far are not expected to.
enum class Waiter : std::uint8_t {
  kAny,      ///< a thread that may give up, or one of several
  kUnnamed,  ///< for ever, the one thread that has submitted all unnamed operations of this rank
  kAlone,    ///< for ever, the one thread that has submitted all operations of this rank
};

/// Tensors of one operation that come one after the other.
struct BatchEntry {
  Ticket ticket = 0;  ///< of no meaning in an entry with `zeros`
  std::uint32_t first_tensor = 0;
  std::uint32_t tensor_count = 1;        ///< 1 also of an operation without tensors
  std::vector<std::int64_t> first_dims;  ///< of these tensors; see wire::DecidedBatch
  /// This rank has joined and did not submit this tensor: it contributes so many elements of zero
  /// and drops the result.
  std::optional<std::int64_t> zeros = {};
};

/// While a plan is frozen each rank starts its buckets by itself. The others may never do so (the
/// plan thaws); so the data plane meets before it touches any data:
///
/// The rank publishes {plan, count, hash}, then waits until every rank has published a count of
/// this plan that is no smaller, or has left this plan for a later one. A rank whose hash of the
/// same count differs is a bug of ours: DataPlaneFailed. While it waits the gate may be *withdrawn*
/// (Effects::withdraw): then the batch does not run. Look at the withdrawal after the word of a
/// peer that is in a later plan: that peer may have got there only because this gate was withdrawn.
/// What was published stays published. A gate never fails because a peer is gone; the planner says
/// so.
struct Gate {
  std::uint32_t plan = 0;   ///< 1, 2, 3, ...
  std::uint64_t count = 0;  ///< of buckets that this rank has started in this plan: 1, 2, 3, ...
  std::uint64_t hash = 0;   ///< of the plan and the bucket
  std::size_t buckets = 0;  ///< that the plan has; for people, not published

  bool operator==(const Gate&) const = default;
};

/// What the operations of a batch have in common; see wire::Signature.
struct BatchSpec {
  OpKind kind = OpKind::kAllreduce;
  ReduceOp reduce_op = ReduceOp::kSum;
  ProcessSetId process_set = kWorldSet;
  std::int32_t root_rank = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::int32_t> ranks;

  bool operator==(const BatchSpec&) const = default;
};
BatchSpec SpecOf(const wire::Signature& signature);

/// A fused operation. Every member of its process set gets the same batches in the same order; a
/// batch of kind kProcessSet comes to every rank, before any operation of that set.
struct Batch {
  std::uint64_t sequence = 0;  ///< 1, 2, 3, ...
  BatchSpec spec;
  DType dtype = DType::kFloat32;  ///< of a reduction
  std::vector<BatchEntry> entries;
  /// Of the first batch of a bucket of a frozen plan; further ones of the bucket follow without.
  std::optional<Gate> gate = {};
};

struct Outgoing {
  int to = 0;
  wire::Bytes frame;
};
struct Completion {  ///< an operation that ends without running
  Ticket ticket = 0;
  Status status;
};
struct Notice {  ///< for the log, e.g. a stall warning
  LogLevel level = LogLevel::kWarning;
  std::string text;
};
/// For the timeline (coordinator only, and only while tracing): `rank` has announced `name`.
struct ReadyNote {
  OpKind kind = OpKind::kAllreduce;
  std::string name;
  int rank = 0;
  ProcessSetId process_set = kWorldSet;
};

/// What the caller must now do. Appended to; the caller empties it.
struct Effects {
  std::vector<Outgoing> send;
  /// A plan has thawed: batches of it after this sequence, which no rank has let through its gate,
  /// do not run on any rank. Their operations are in flight as before, under the same tickets, and
  /// come again in later batches (or finish); these get the sequences again. Comes before `run`,
  /// which has nothing that is withdrawn.
  std::optional<std::uint64_t> withdraw;
  std::vector<Batch> run;
  /// The round of the unnamed operations of these sets has ended: those submitted from now on count
  /// from zero, in the next round. To be done before anybody hears of what is in `finish`.
  std::vector<ProcessSetId> ended_rounds;
  std::vector<Completion> finish;
  std::vector<Notice> notices;
  std::vector<ReadyNote> ready;
  std::vector<TunerSample> samples;  ///< on rank 0, while Options::tune: {bucket, edge} bytes
  /// A departure was decided: nothing is negotiated any more, so nobody waits for what this rank
  /// sends after these messages.
  bool over = false;
  /// Not OK, once: the world is broken (a peer is lost or speaks nonsense). It carries the first
  /// cause. Fail all operations with it, Leave(fatal), end the session.
  Status fatal;

  bool empty() const {
    return send.empty() && !withdraw && run.empty() && ended_rounds.empty() && finish.empty() &&
           notices.empty() && ready.empty() && samples.empty() && !over && fatal.ok();
  }
};

/// What became of frozen plans on this rank; all monotone.
struct PlanCounters {
  std::uint64_t freezes = 0;
  std::array<std::uint64_t, wire::kThawReasons> thaws{};  ///< by wire::ThawReason of the first rank
  std::uint64_t buckets = 0;                              ///< started while frozen
  std::uint64_t frames = 0;  ///< sent while frozen: 0 until something deviates
};

/// One rank's half of the negotiation; on rank 0 also the coordinator. Not thread-safe. Operations
/// of one Submit..Flush interval travel in one frame. Messages of another generation are dropped.
class Planner {
 public:
  static std::unique_ptr<Planner> Create(int rank, int size, std::uint64_t generation,
                                         Options options);
  virtual ~Planner() = default;

  virtual void Submit(Submission&& submission, TimePoint now, Effects& effects) = 0;
  /// Ends a burst of Submit calls: announces them.
  virtual void Flush(TimePoint now, Effects& effects) = 0;
  virtual void Receive(int from, std::span<const std::byte> frame, TimePoint now,
                       Effects& effects) = 0;
  /// The data plane has finished all of this rank's batches up to this one; to be called on every
  /// rank, in order, and before Leave: the goodbye tells the peers which batches they may still
  /// finish without this rank. On rank 0: while batches are outstanding the coordinator lets ready
  /// tensors gather up to the threshold; when none is, it dispatches what is ready.
  virtual void BatchFinished(std::uint64_t sequence, TimePoint now, Effects& effects) = 0;
  /// The data plane has failed. effects.fatal follows, now or at next_deadline() (at most 500 ms
  /// later): the peer that the data plane blames may itself have failed because of another one, and
  /// its last words tell.
  virtual void DataPlaneFailed(const Status& cause, TimePoint now, Effects& effects) = 0;
  /// The peer's link ended; `cause` says how. If it had said goodbye, operations that need it fail
  /// with "rank N has left"; otherwise everything fails (effects.fatal), unless it is only out of
  /// reach: a departure was decided, and `cause` names another rank that has said goodbye.
  virtual void PeerLost(int rank, const Status& cause, TimePoint now, Effects& effects) = 0;
  /// This rank leaves: goodbye frames to all. `cause` OK = shutdown, else the error that made it
  /// leave (a better explanation, if known, is sent instead). The caller finishes what is pending.
  virtual void Leave(const Status& cause, TimePoint now, Effects& effects) = 0;
  /// A thread waits for this operation and does not go on before it has run. To be called after its
  /// Submit, when the wait is longer than a spin, and when `waiter` changes: while a plan is
  /// frozen, an operation may wait for others of its bucket that this very thread would submit
  /// later; and ranks may wait for each other in different operations. Names that are not in flight
  /// are ignored.
  virtual void Awaited(ProcessSetId set, std::string_view name, Waiter waiter, TimePoint now) = 0;
  /// Stall rules, patience and deferred verdicts. Call at or after next_deadline().
  virtual void Tick(TimePoint now, Effects& effects) = 0;
  virtual std::optional<TimePoint> next_deadline() const = 0;
  /// True while ready tensors gather, that is: while the next BatchFinished could dispatch some;
  /// and while a tuner wants to know of it. When false, the caller need not hurry to report
  /// finished batches (it still must, in order).
  virtual bool gathering() const = 0;
  /// How many operations this rank has to submit, at least, before Submit can do more than note
  /// them: 1, or while a plan is frozen what its next bucket lacks. The caller may keep them until
  /// so many have come, or somebody asks for one; a deviation from the plan is noticed only then.
  virtual std::size_t needed_submissions() const = 0;
  /// Names (of process sets) with state here: in flight, with an id, or failed before this rank
  /// submitted them; on rank 0 those of the coordinator as well. Bounded by what is in flight and
  /// the intern capacity.
  virtual std::size_t remembered_names() const = 0;
  /// Whether effects.ready is filled (off at first, so that it costs nothing).
  virtual void SetTracing(bool on) = 0;
  virtual const PlanCounters& plan_counters() const = 0;
};

}  // namespace hvl::plan
