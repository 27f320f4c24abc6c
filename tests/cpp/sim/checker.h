// What must hold in a simulated world, checked whenever something happens. It knows only what the
// ranks submitted and what came back, nothing of the planners.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "csrc/plan/planner.h"
#include "tests/cpp/sim/scenario.h"

namespace hvl::sim {

struct Statistics {
  std::uint64_t seeds = 0;
  std::uint64_t events = 0;
  std::uint64_t frames = 0;
  std::uint64_t batches = 0;
  std::uint64_t fused_batches = 0;
  std::uint64_t operations_run = 0;  ///< on a rank
  std::uint64_t mismatches = 0;      ///< likewise
  std::uint64_t timeouts = 0;
  std::uint64_t deadlocks = 0;     ///< ranks that waited for each other, of any number
  std::uint64_t ended_rounds = 0;  ///< operations that failed on a rank with all unnamed ones
  std::uint64_t departures = 0;
  std::uint64_t fatal_ranks = 0;
  std::uint64_t notices = 0;
  std::uint64_t epochs = 0;
  std::uint64_t set_batches = 0;                          ///< of process sets
  std::uint64_t registrations = 0;                        ///< of process sets, and removals
  std::uint64_t joins = 0;                                ///< of all ranks
  std::uint64_t zeros = 0;                                ///< tensors run on a rank that has joined
  std::uint64_t matrices = 0;                             ///< of alltoalls
  std::uint64_t strayed_sites = 0;                        ///< mismatches by the place alone
  std::uint64_t freezes = 0;                              ///< as rank 0 counts
  std::array<std::uint64_t, wire::kThawReasons> thaws{};  ///< by reason
  std::uint64_t buckets = 0;                              ///< run by plans
  std::uint64_t withdrawals = 0;                          ///< of a bucket on a rank
  std::uint64_t huge_worlds = 0;                          ///< of more than 64 ranks

  void Add(const Statistics& other);
  std::string ToString() const;
};

/// Operations of one name in one process set are matched by order: the k-th that one member submits
/// belongs to the k-th of every other one. All of them run, in the same batch, or all of them fail
/// alike; other ranks get nothing of them. A rank that has joined has submitted nothing meanwhile:
/// when all have joined, it continues with the number that the others have reached.
class Checker {
 public:
  explicit Checker(const Scenario& scenario);

  void Submitted(int rank, std::size_t name_index, const plan::Submission& submission,
                 TimePoint now);
  void Ran(int rank, const plan::Batch& batch, TimePoint now);
  void Finished(int rank, const plan::Completion& completion, TimePoint now);
  /// The rank's program submits nothing until this has ended.
  void Blocked(int rank, plan::Ticket ticket);
  void Fatal(int rank, const Status& status, TimePoint now);
  void Noticed(int rank, const plan::Notice& notice);
  /// The rank crashed, or left because of an error of its own.
  void Died(int rank, TimePoint now);
  /// The rank shut down.
  void Left(int rank);
  /// Checked after every event: the planner must not remember more than this.
  void Remembers(int rank, std::size_t names, TimePoint now);
  /// Nothing more will happen.
  void AtEnd(TimePoint now);

  void Fail(std::string what);
  const std::optional<std::string>& violation() const { return violation_; }
  const Statistics& statistics() const { return statistics_; }

 private:
  enum class State : std::uint8_t { kPending, kRan, kFailed };
  struct Submission {
    plan::Ticket ticket = 0;
    wire::Signature signature;
    std::vector<std::int64_t> first_dims;
    bool transient = false;
    std::string site;
    TimePoint at;
    State state = State::kPending;
    std::size_t tensors_left = 0;
    std::vector<bool> tensors_run;
  };
  /// The k-th operation of a name.
  struct Instance {
    TimePoint first_submitted;
    TimePoint last_submitted;
    int members = 0;    // of its process set
    int submitted = 0;  // on so many of them
    int ended = 0;      // likewise, or passed over by a join
    std::vector<std::optional<Submission>> by_rank;
    std::optional<Status> failure;         // of the first rank that saw one
    std::optional<TimePoint> round_ended;  // when the first one failed with its round
  };
  struct Place {  // where a ticket belongs
    std::size_t name_index = 0;
    std::size_t instance = 0;
  };
  struct Entry {
    std::optional<Place> place;  // none = zeros of a rank that has joined
    std::uint32_t tensor_index = 0;
    std::vector<std::int64_t> first_dims;
    std::int64_t zeros = 0;
  };
  struct RankState {
    std::map<plan::Ticket, Place> places;
    std::vector<std::size_t> submitted;  // by name
    std::optional<Place> blocked;        // in this, since when it has submitted nothing
    std::uint64_t last_sequence = 0;
    std::size_t pending = 0;
    std::size_t joins = 0;  // submitted
    bool joined = false;    // the last one has not ended
    bool gone = false;      // died, left, or ended by a fatal error
    bool left = false;      // by shutdown
  };

  RankState& At(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  Instance& InstanceAt(const Place& place) { return instances_[place.name_index][place.instance]; }
  Submission& SubmissionAt(int rank, const Place& place) {
    return *InstanceAt(place).by_rank[static_cast<std::size_t>(rank)];
  }
  /// Longest time from the last submission of an operation to the decision to run it. None where
  /// ranks stand still now and then.
  std::optional<Duration> PatienceWithDecisions() const;
  std::string Text(const Place& place) const;
  bool HasLeft(int rank) const;
  ProcessSetId SetOf(const Place& place) const { return scenario_.name_sets[place.name_index]; }
  const std::vector<int>& MembersOf(const Place& place) const {
    return scenario_.members[SetOf(place)];
  }
  /// Of the first rank that has submitted it.
  const Submission& AnySubmission(const Place& place) const;
  void Joined(int rank, TimePoint now);
  void JoinEnded(int rank, bool well, TimePoint now);

  void EndedOnOneRank(Instance& instance, TimePoint now);
  std::optional<Entry> RunEntry(int rank, const plan::Batch& batch, const plan::BatchEntry& entry,
                                TimePoint now);
  void CheckSequence(int rank, const plan::Batch& batch);
  void CheckSame(int rank, const plan::Batch& batch, const std::vector<Entry>& entries);
  bool IsSame(const Entry& a, const Entry& b) const;
  void CheckAgreement(const Entry& entry);
  void CheckDims(const Entry& entry);
  void CheckFusion(const plan::Batch& batch, const std::vector<Entry>& entries);
  void CheckMismatch(const Place& place, const Status& status);
  void CheckDeadlock(const Status& status);
  bool IsBlocked(int rank) const;
  std::set<int> WaitsFor(int rank) const;
  std::set<int> WaitsInTheEndFor(int rank) const;
  bool IsDeadlock() const;
  void CheckFailure(int rank, const Place& place, const Status& status, TimePoint now);
  bool MayHangInThaw() const;
  void CheckPendingAtEnd(const Place& place, int rank, TimePoint now);

  const Scenario& scenario_;
  std::vector<RankState> ranks_;
  std::vector<std::vector<Instance>> instances_;  // [name][k]
  struct LoggedBatch {
    plan::Batch batch;  // entries are left out
    std::vector<Entry> entries;
    bool checked = false;  // once some rank has submitted each entry
  };
  std::map<std::uint64_t, LoggedBatch> log_;           // by sequence
  std::map<std::uint64_t, std::vector<int>> skipped_;  // by ranks, before it was logged
  std::vector<std::vector<std::size_t>> join_counts_;  // [join][name]: submitted when all joined
  std::vector<std::size_t> join_sizes_;                // ranks that submitted it
  TimePoint last_join_;
  std::size_t open_instances_ = 0;   // begun, and not ended on all ranks
  std::set<std::string> deadlocks_;  // messages
  std::deque<TimePoint> failed_at_;  // ended on all ranks by a failure, lately
  bool crashed_ = false;
  TimePoint crashed_at_;
  bool departed_ = false;
  bool timed_out_ = false;  // the session has ended, see MayHangInThaw
  std::optional<std::string> violation_;
  Statistics statistics_;
};

}  // namespace hvl::sim
