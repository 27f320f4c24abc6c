// Rank 0's second role: collects the announcements of all ranks and decides, in one stream that
// every rank applies in order, what runs, what fails and which names have ids. Used by Planner;
// docs/negotiation.md tells the protocol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "csrc/plan/batcher.h"
#include "csrc/plan/buckets.h"
#include "csrc/plan/failed_instances.h"
#include "csrc/plan/ids.h"
#include "csrc/plan/join.h"
#include "csrc/plan/name_table.h"
#include "csrc/plan/planner.h"
#include "csrc/plan/process_sets.h"
#include "csrc/plan/rank_set.h"
#include "csrc/plan/sites.h"
#include "csrc/plan/stall.h"
#include "csrc/plan/steady.h"
#include "csrc/plan/tuner.h"
#include "csrc/wire/messages.h"
#include "horovodlite/status.h"

namespace hvl::plan {

class Coordinator {
 public:
  Coordinator(int size, std::uint64_t generation, const Options& options);

  /// Internal when the announcement makes no sense. Takes signatures out of the message.
  Status OnAnnounce(int from, wire::Announce&& announce, TimePoint now, Effects& effects);
  /// The data plane of rank 0 has finished all its batches up to this one.
  void OnBatchFinished(std::uint64_t sequence, TimePoint now, Effects& effects);
  /// A rank has left cleanly: the last decision. Internal when that makes no sense.
  Status OnDeparture(int rank, std::uint64_t batches_finished, TimePoint now);
  /// A rank has stopped starting buckets. Internal when that makes no sense.
  Status OnStopped(int from, const wire::Stopped& stopped, TimePoint now);
  /// What could not be looked at while a plan was frozen, in the order of arrival, once it has
  /// thawed: to be announced again.
  struct Held {
    int from = 0;
    wire::Announce announce;
  };
  std::vector<Held> TakeHeld();
  /// Stall rules and waiting mismatches.
  void Tick(TimePoint now, Effects& effects);
  std::optional<TimePoint> next_deadline() const;
  std::size_t remembered_names() const { return records_.size(); }
  /// See Planner. A tuner has to know when a step ends.
  bool gathering() const { return !batcher_.empty() || (plan_ && tuner_ && !tuner_->settled()); }
  void SetTracing(bool on) { tracing_ = on; }

  /// TakeHeld or TakeDecisions would return something.
  bool has_news() const { return !decisions_.empty() || (!held_.empty() && !plan_); }
  /// What has been decided since the last call, for all ranks in this order.
  std::vector<wire::Decide> TakeDecisions();

 private:
  enum class Phase : std::uint8_t {
    kIdle,     // nobody has announced it
    kWaiting,  // some ranks have
    kReady,    // all members have, equally; it gathers until it is dispatched
  };
  /// Ranks whose announcement is not the agreed signature.
  struct Proposal {
    wire::Signature signature;
    RankSet ranks;
  };
  using Index = std::uint32_t;
  static constexpr Index kNoIndex = ~Index{0};

  /// A name of one process set that has an id, that waits or is ready, or whose failure some rank
  /// has not applied yet.
  struct Record {
    // What every announcement touches comes first.
    ProcessSetId set = kWorldSet;
    Phase phase = Phase::kIdle;
    bool transient = false;
    bool joins = false;            // some rank announced a join
    bool lacks_joined = false;     // it runs although ranks that have joined did not announce it
    bool redefined = false;        // it changes what its id stands for
    bool has_previous_id = false;  // in the epoch before
    bool planned = false;          // in the plan that is frozen
    int open_failures = 0;         // in failed_
    int member_count = 0;          // of its process set
    RankSet announced;
    std::size_t dims_per_rank = 0;  // first dimensions that a rank announces; of `agreed`
    std::vector<Proposal> proposals;
    std::optional<std::uint32_t> id;  // in the current epoch
    Index older = kNoIndex;           // neighbours in the list of waiting operations
    Index newer = kNoIndex;
    TimePoint first_announced;
    TimePoint next_warning;
    std::size_t undispatched = 0;
    std::uint64_t ready_at = 0;            // count of what became ready before
    std::vector<TensorCost> costs;         // of `agreed`
    std::vector<std::int64_t> first_dims;  // see wire::DecidedBatch
    std::optional<TimePoint> mismatch_deadline;

    wire::Signature agreed;  // what the ids stand for
    Sites sites;             // of the last announcements that told them
  };
  Status OnKnown(int from, const wire::Announce& announce, TimePoint now, Effects& effects);
  Status OnFresh(int from, wire::Fresh&& fresh, TimePoint now, Effects& effects);
  Status CheckMember(ProcessSetId set, int from) const;
  Status CheckFresh(int from, const wire::Fresh& fresh) const;
  /// Adds the rank to the instance; starts the instance if there is none.
  Status AddRank(Index index, int from, TimePoint now);
  void NoteReady(Index index, OpKind kind, int from, Effects& effects) const;
  void NoteFirstDims(Index index, OpKind kind, int from, std::span<const std::int64_t> dims);
  void NoteProposal(Index index, int from, wire::Signature&& signature);
  void OnJoin(Index index, int from, Effects& effects);
  void EndJoin(Index index);
  void RenewJoin(TimePoint now);

  /// All members have announced it, or have joined.
  bool IsComplete(const Record& record) const {
    return record.announced.count() == record.member_count ||
           (!joined_.empty() && record.phase == Phase::kWaiting && Missing(record).empty());
  }
  void Complete(Index index, Effects& effects);
  /// Why what all have announced alike cannot run; or OK.
  Status Refusal(Index index, const wire::Signature& signature) const;
  Status RegistrationFault(const wire::Signature& registration) const;
  void AdoptProposal(Index index);
  void MakeReady(Index index);
  std::uint64_t ResultRows(const Record& record, std::span<const std::int64_t> dims) const;
  /// Members that are neither announced nor joined.
  RankSet Missing(const Record& record) const;

  void CheckMismatch(Index index, TimePoint now);
  bool SitesDisagree(const Record& record) const;
  void WarnOfSites(Index index, Effects& effects);
  void FailMismatch(Index index, Effects& effects);
  void Fail(Index index, Status status, Effects& effects);
  void DropInstance(Index index);

  /// What blocks the program of a rank, if it is true still; see wire::Blocked.
  struct Block {
    Index operation = kNoIndex;
    bool alone = false;
  };
  /// Ranks that are blocked in one operation.
  struct Waiters {
    Index operation = kNoIndex;
    RankSet ranks;
    RankSet alone;  // those of them that submit nothing at all meanwhile
  };
  void NoteBlocked(int from, const std::optional<wire::Blocked>& blocked, Effects& effects);
  std::vector<Waiters> BlockedRanks() const;
  RankSet WaitsFor(const Waiters& some, const Waiters& others) const;
  std::vector<Waiters> WaitedFor(const Waiters& first, const std::vector<Waiters>& stuck) const;
  std::vector<Waiters> Deadlock() const;
  void FailDeadlock(const std::vector<Waiters>& deadlock, Effects& effects);
  void EndRound(ProcessSetId set, const Status& error);
  /// It is an unnamed operation; see HasRound.
  bool IsOfRound(Index index) const {
    return HasRound(LatestSignature(index).kind, records_[index].transient);
  }
  void ReleaseIfUnused(Index index);

  /// True when the announcement belongs to an instance that has failed.
  bool BelongsToFailed(Index index, int from);
  void CloseFailures(const std::vector<Index>& records);
  void StartEpoch();
  void ForgetEpoch();

  /// A plan from the decision that freezes it to the one that thaws it.
  struct Plan {
    std::uint64_t decision = 0;  // that froze it
    std::uint64_t base = 0;      // sequence of the last batch before it
    BucketCounts counts;
    std::vector<Index> operations;
    std::size_t round_bytes = 0;
    std::uint64_t rounds = 0;  // that this rank has run
    // Thawing: from the first rank that stops to the last.
    bool thawing = false;
    int first = 0;  // who stopped first, and why
    wire::ThawReason reason = wire::ThawReason::kStopped;
    TimePoint since;
    TimePoint next_warning;
    RankSet stopped;
    std::uint64_t least_started = 0;
    int least = 0;  // who has
    std::uint64_t most_started = 0;
    int last = 0;                              // who stopped last
    std::optional<wire::Departure> departure;  // decided after the thaw
  };
  bool MayPlan(const Record& record) const;
  void NoteDecided(Index index);
  void NoteObstacle(Index index);
  void NoteOther() {
    if (freeze_after_ > 0) steady_.NoteOther();
  }
  bool MayFreeze() const;
  void Freeze();
  void BeginThaw(int first, wire::ThawReason reason, TimePoint now);
  Status NoteStopped(int rank, std::uint64_t started);
  void EndThaw();
  void Depart(const wire::Departure& departure);
  void BackOff(std::uint64_t instances);
  BucketSizes SizesOfBuckets() const;
  /// A thaw for other buckets ends in a plan at once: the program has not changed.
  std::uint64_t InstancesToFreeze() const { return tuning_ ? 1 : freeze_after_; }
  void Tune(TimePoint now, Effects& effects);
  /// An announcement while a plan is frozen.
  Status Hold(int from, wire::Announce&& announce, TimePoint now);
  Status DropPlanned(wire::Announce& announce) const;
  void CheckThaw(TimePoint now, Effects& effects);
  std::optional<TimePoint> ThawDeadline() const;

  void LinkNewest(Index index);
  void Unlink(Index index);
  /// Age at which something must be done about a waiting operation for the first time.
  Duration FirstStallAge() const;
  void CheckStalls(TimePoint now, Effects& effects);
  /// Fails operations that wait for each other: see UserName.
  void CheckKinds(TimePoint now, Effects& effects);
  const wire::Signature& LatestSignature(Index index) const;
  StalledOperation Stalled(Index index, TimePoint now) const;

  /// What happened may let ready tensors go, and closes the decision of this event.
  void Conclude();
  void Dispatch(const std::vector<ReadyTensor>& tensors);
  void AppendMember(wire::DecidedBatch& batch, Index index, std::uint32_t first_tensor,
                    std::uint32_t tensor_count);
  wire::Member NewMember(Index index);
  std::optional<std::uint32_t> NewId(Index index);
  wire::Decide& Building();
  void CutDecision();

  const int size_;
  const std::uint64_t generation_;
  const Options options_;

  ProcessSets sets_;
  std::set<ProcessSetId> changing_;  // added or removed by what is ready and not yet decided
  NameTable<Record> records_;
  Batcher batcher_;
  std::uint64_t dispatched_ = 0;       // sequence of the last batch handed out
  std::uint64_t dispatched_here_ = 0;  // of the last one that rank 0 takes part in
  std::uint64_t finished_ = 0;         // and of the last one that has run on rank 0

  JoinedRanks joined_;
  Index join_ = kNoIndex;  // the join that waits for more ranks
  std::set<std::pair<std::string, std::string>> warned_sites_;

  Ids ids_;
  FailedInstances failed_;
  std::vector<std::optional<Block>> blocks_;  // by rank

  SteadyState steady_;
  std::uint64_t freeze_after_;     // instances; doubled when plans do not last
  std::optional<Tuner> tuner_;     // of the sizes of buckets: most, edge
  bool tuning_ = false;            // the last plan thawed only for other buckets
  std::size_t obstacles_ = 0;      // operations that the tuner's first plan could not hold
  std::string obstacle_;           // what to tell about it
  std::uint64_t ready_count_ = 0;  // operations that have become ready
  std::uint32_t last_plan_ = 0;
  std::optional<Plan> plan_;  // while one is frozen or thaws
  std::vector<Held> held_;

  // Operations that some ranks have announced, oldest first.
  Index oldest_ = kNoIndex;
  Index newest_ = kNoIndex;
  std::optional<TimePoint> stall_check_at_;
  std::optional<TimePoint> kinds_check_at_;
  std::vector<Index> mismatched_;

  std::uint64_t last_decision_ = 0;
  std::optional<wire::Decide> building_;
  std::size_t building_bytes_ = 0;
  std::vector<wire::Decide> decisions_;
  bool departed_ = false;
  bool tracing_ = false;
};

}  // namespace hvl::plan
