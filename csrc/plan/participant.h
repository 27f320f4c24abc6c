// One rank's half of the negotiation: announces what this rank submits, and turns the coordinator's
// decisions into batches of this rank's tickets. Used by Planner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/plan/batcher.h"
#include "csrc/plan/frozen_plan.h"
#include "csrc/plan/name_table.h"
#include "csrc/plan/planner.h"
#include "csrc/plan/process_sets.h"
#include "csrc/plan/shared_signature.h"
#include "csrc/wire/messages.h"
#include "horovodlite/status.h"

namespace hvl::plan {

class Participant {
 public:
  Participant(int rank, int size, std::uint64_t generation, const Options& options)
      : rank_(rank), size_(size), generation_(generation), options_(options), sets_(size) {}

  /// See Planner::Submit. An operation that cannot run any more is finished at once.
  void Submit(Submission&& submission, TimePoint now, Effects& effects);
  /// The announcements of everything submitted since the last call, usually one or none. None while
  /// a plan is frozen.
  std::vector<wire::Announce> TakeAnnouncements();
  /// True after a thaw, when there is something to announce although nobody calls Flush.
  bool announces() const { return announces_; }
  /// Tells the coordinator that this rank has stopped starting buckets, once per plan.
  std::optional<wire::Stopped> TakeStopped();
  /// An announcement of nothing, if the coordinator waits to hear that a failure was applied.
  std::optional<wire::Announce> TakeAcknowledgement();
  /// Applies a decision. Internal when it makes no sense.
  Status Apply(const wire::Decide& decide, TimePoint now, Effects& effects);
  /// A rank has left: finishes everything, and everything submitted later, with Aborted. Returns
  /// Aborted when operations that need that rank have begun to run.
  Status Depart(const wire::Departure& departure, Effects& effects);
  /// A departure was decided: nothing is negotiated any more.
  bool departed() const { return departed_.has_value(); }
  /// Rank 0 has left, and with it the coordinator. `begun`: see wire::Bye.
  Status DepartCoordinator(std::uint64_t finished, std::uint64_t begun, Effects& effects);

  // See Planner.
  void Awaited(ProcessSetId set, std::string_view name, Waiter waiter, TimePoint now);
  void BatchFinished(std::uint64_t sequence, TimePoint now);
  void Tick(TimePoint now);
  std::optional<TimePoint> next_deadline() const;
  /// This rank shuts down.
  void StopToLeave();
  bool frozen() const { return frozen_ && !frozen_->stopped; }
  std::size_t needed_submissions() const {
    return frozen() ? frozen_->buckets[frozen_->next].missing : 1;
  }
  PlanCounters& counters() { return counters_; }
  const PlanCounters& counters() const { return counters_; }

  /// The last batch that this rank takes part in.
  std::uint64_t last_own_sequence() const { return sets_.LastSequenceWith(rank_); }
  std::size_t remembered_names() const { return records_.size(); }
  std::uint64_t last_sequence() const { return last_sequence_; }
  /// "'x', 'y' and 3 more operations", in the order of submission; empty if nothing is in flight.
  std::string PendingText() const;

 private:
  /// A name of one process set that is in flight, has an id, or has failed elsewhere before this
  /// rank submitted it.
  struct Record {
    // The operation in flight. What every operation touches comes first.
    ProcessSetId set = kWorldSet;
    bool in_flight = false;
    bool unsent = false;  // submitted but not announced
    bool transient = false;
    bool as_agreed = false;             // its signature is `agreed`; otherwise `proposal`
    std::optional<std::uint32_t> id;    // stands for `agreed`
    std::optional<std::size_t> bucket;  // in the plan that is frozen
    Ticket ticket = 0;
    std::size_t undispatched = 0;  // tensors that no batch holds yet (without any it counts as one)
    std::uint64_t order = 0;       // of submission
    std::vector<bool> dispatched;  // by tensor; used when an operation is spread over batches
    std::vector<std::int64_t> first_dims;

    SharedSignature agreed;
    SharedSignature proposal;
    std::string site;
    std::optional<TimePoint> awaited;  // since then a thread waits for it

    // Failures of operations of this name that this rank has not submitted: the next ones it
    // submits get them.
    std::deque<Status> owed;

    const wire::Signature& signature() const { return as_agreed ? *agreed : *proposal; }
  };
  using Index = NameTable<Record>::Index;

  /// A batch while its members are read.
  struct Assembly {
    const wire::DecidedBatch& decided;
    const ProcessSet& set;
    Batch batch;
    FusionKey key;
    std::size_t next_dim = 0;  // in decided.first_dims
  };

  /// Why this rank must not submit it now, as far as the session is concerned; or OK.
  Status Refusal(const Submission& submission) const;
  void NoteInFlight(Index index);
  void NoteEnded(Index index);
  void DropOwed(ProcessSetId set);
  wire::Announce NewAnnouncement();
  void AnnounceKnown(std::vector<std::uint32_t> ids, std::vector<wire::Announce>& announcements);
  Index FindOrAdd(ProcessSetId set, const std::string& name);
  Index IndexOf(const SharedSignature& signature);
  void ReleaseIfUnused(Index index);
  void Finish(Index index, const Status& status, Effects& effects);
  Status LeftError(ProcessSetId set, const std::string& name) const;

  Status ApplyBatch(const wire::DecidedBatch& decided, Effects& effects);
  /// A batch of a set that this rank is not in: only its ids count.
  Status SkipBatch(const wire::DecidedBatch& decided);
  Status ApplyRegistration(const BatchSpec& registration);
  Status ApplyMember(const wire::Member& member, Assembly& assembly);
  /// `index`: none for a name without state here.
  Status ApplyOperation(const wire::Member& member, std::optional<Index> index, Assembly& assembly);
  Status GiveId(const wire::Member& member, ProcessSetId set, std::optional<Index>& index);
  bool StandsJoined(ProcessSetId set) const;
  Status AppendZeros(const wire::Member& member, std::optional<Index> index, Assembly& assembly);
  Status AppendTensors(Record& record, const std::optional<wire::Member::TensorRange>& range,
                       Assembly& assembly);
  Status ApplyFailure(const wire::Failure& failure, Effects& effects);
  Status EndRound(ProcessSetId id, const Status& error, Effects& effects);
  /// An operation of a round that has ended, or the first one since which nobody has heard of that.
  bool FailsWithRound(ProcessSetId set, const Submission& submission, Effects& effects);
  void StartEpoch();

  Status ApplyFreeze(const wire::Freeze& freeze, TimePoint now, Effects& effects);
  Status CompileBuckets(const wire::Freeze& freeze, FrozenPlan& plan);
  Status CompileMember(const wire::Member& member, FrozenPlan::Bucket& bucket, Batch& batch,
                       FusionKey& key, std::map<Index, std::vector<bool>>& parts);
  void KeepSubmissions(TimePoint now, Effects& effects);
  void SubmitFrozen(Index index, TimePoint now, Effects& effects);
  void StartBuckets(Effects& effects);
  void StartBucket(Effects& effects);
  void Stop(wire::ThawReason reason);
  void NotePatience(TimePoint now);
  std::optional<TimePoint> StallDeadline() const;
  std::optional<TimePoint> FrozenDeadline() const;
  void TickFrozen(TimePoint now);

  void NoteWaiter(Index index, Waiter waiter, TimePoint now);
  void NoteUnblocked();
  std::optional<TimePoint> BlockedDeadline() const;
  std::optional<wire::Blocked> BlockedNow() const;
  Status ApplyStop(std::uint32_t plan);
  Status ApplyThaw(const wire::Thaw& thaw, Effects& effects);
  Status Withdraw(std::uint64_t started, Effects& effects);
  void Unfreeze();

  const int rank_;
  const int size_;
  const std::uint64_t generation_;
  const Options options_;

  static constexpr Index kNoIndex = ~Index{0};

  ProcessSets sets_;
  NameTable<Record> records_;
  std::vector<Index> by_id_;  // kNoIndex: of a set that this rank is not in
  std::uint32_t epoch_ = 0;
  std::uint64_t last_decide_ = 0;
  std::uint64_t last_sequence_ = 0;
  std::uint64_t next_order_ = 0;
  std::vector<Index> burst_;  // submitted since the last announcement
  bool acknowledge_ = false;  // the coordinator waits to hear that a decision was applied
  std::size_t owed_count_ = 0;
  std::uint64_t finished_ = 0;  // the last batch that has run
  std::optional<FrozenPlan> frozen_;
  std::uint32_t last_plan_ = 0;
  bool tells_stopped_ = false;
  bool announces_ = false;
  PlanCounters counters_;
  /// What the thread that orders this rank's unnamed operations is blocked in, while it is in
  /// flight. (What a frozen plan has started may be in flight again.)
  struct Block {
    Index operation = kNoIndex;
    TimePoint since;
    bool alone = false;  // see wire::Blocked
    bool told = false;   // announcements say so
  };
  std::optional<Block> block_;
  std::optional<Index> join_;    // this rank's join in flight
  std::optional<int> departed_;  // the rank that has left
};

}  // namespace hvl::plan
