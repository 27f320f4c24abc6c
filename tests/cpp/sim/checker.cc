#include "tests/cpp/sim/checker.h"

#include <algorithm>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/plan/process_sets.h"
#include "tests/support/batches.h"

namespace hvl::sim {
namespace {

std::uint64_t ElementBytes(const wire::TensorSignature& tensor) {
  return static_cast<std::uint64_t>(ElementCount(tensor.shape)) * DTypeBytes(tensor.dtype);
}

std::uint64_t MostReceived(const std::vector<std::int64_t>& matrix, std::size_t ranks) {
  std::vector<std::uint64_t> received(ranks);
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    received[i % ranks] += static_cast<std::uint64_t>(matrix[i]);
  }
  return *std::max_element(received.begin(), received.end());
}

/// How the error of ranks begins that wait for each other.
constexpr std::string_view kDeadlock = "ranks wait for each other";

bool SameSpec(const plan::Batch& a, const plan::Batch& b) {
  return a.spec == b.spec && a.dtype == b.dtype && a.sequence == b.sequence;
}

}  // namespace

void Statistics::Add(const Statistics& other) {
  seeds += other.seeds;
  events += other.events;
  frames += other.frames;
  batches += other.batches;
  fused_batches += other.fused_batches;
  operations_run += other.operations_run;
  mismatches += other.mismatches;
  timeouts += other.timeouts;
  deadlocks += other.deadlocks;
  ended_rounds += other.ended_rounds;
  departures += other.departures;
  fatal_ranks += other.fatal_ranks;
  notices += other.notices;
  epochs += other.epochs;
  set_batches += other.set_batches;
  registrations += other.registrations;
  joins += other.joins;
  zeros += other.zeros;
  matrices += other.matrices;
  strayed_sites += other.strayed_sites;
  freezes += other.freezes;
  for (std::size_t i = 0; i < thaws.size(); ++i) thaws[i] += other.thaws[i];
  buckets += other.buckets;
  withdrawals += other.withdrawals;
  huge_worlds += other.huge_worlds;
}

std::string Statistics::ToString() const {
  const auto thawed = [this](wire::ThawReason reason) {
    return thaws[static_cast<std::size_t>(reason)];
  };
  using wire::ThawReason;
  return Format(
             "{} seeds, {} events, {} frames, {} batches ({} fused), {} operations run, failed: {} "
             "by mismatch, {} by timeout, {} by departure; {} deadlocks, {} failed with a round; "
             "{} ranks ended by an error, {} stall "
             "notices, {} epochs; process sets: {} registrations and removals, {} batches; {} "
             "joins, {} tensors of zeros, {} alltoalls, {} mismatches by place; ",
             seeds, events, frames, batches, fused_batches, operations_run, mismatches, timeouts,
             departures, deadlocks, ended_rounds, fatal_ranks, notices, epochs, registrations,
             set_batches, joins, zeros, matrices, strayed_sites) +
         Format(
             "{} plans froze, {} buckets run and {} withdrawn by them; thawed by: {} operations, "
             "{} "
             "signatures, {} missing, {} waits, {} stalls, {} departures, {} tuners; {} worlds of "
             "more than "
             "64 ranks",
             freezes, buckets, withdrawals, thawed(ThawReason::kOperation),
             thawed(ThawReason::kSignature), thawed(ThawReason::kMissing),
             thawed(ThawReason::kAwaited), thawed(ThawReason::kStalled), thawed(ThawReason::kLeft),
             thawed(ThawReason::kTuned), huge_worlds);
}

Checker::Checker(const Scenario& scenario)
    : scenario_(scenario),
      ranks_(static_cast<std::size_t>(scenario.size)),
      instances_(scenario.names.size()) {
  for (RankState& rank : ranks_) rank.submitted.resize(scenario.names.size());
}

void Checker::Fail(std::string what) {
  if (!violation_) violation_ = std::move(what);
}

std::optional<Duration> Checker::PatienceWithDecisions() const {
  if (scenario_.pause_percent > 0) return std::nullopt;
  // Some acts until the announcement, its way, batches that run first, the way of the decision.
  Duration patience = std::chrono::seconds(1) + 400 * scenario_.think +
                      10 * scenario_.long_latency + 200 * scenario_.batch_time;
  // What waits for an operation that a rank leaves out or submits late waits until its plan thaws.
  const bool strays = !scenario_.deviations.empty();
  if (scenario_.options.freeze_after > 0 && strays) patience += scenario_.options.stall_warning / 4;
  return patience;
}

std::string Checker::Text(const Place& place) const {
  return Format("'{}' #{} of process set {}", scenario_.names[place.name_index], place.instance,
                SetOf(place));
}

const Checker::Submission& Checker::AnySubmission(const Place& place) const {
  const Instance& instance = instances_[place.name_index][place.instance];
  return **std::find_if(instance.by_rank.begin(), instance.by_rank.end(),
                        [](const auto& submission) { return submission.has_value(); });
}

void Checker::Submitted(int rank, std::size_t name_index, const plan::Submission& submission,
                        TimePoint now) {
  RankState& self = At(rank);
  const Place place{name_index, self.submitted[name_index]++};
  self.places[submission.ticket] = place;
  ++self.pending;
  self.blocked.reset();
  auto& instances = instances_[name_index];
  while (instances.size() <= place.instance) {
    instances.emplace_back();
    instances.back().first_submitted = now;
    instances.back().by_rank.resize(ranks_.size());
    instances.back().members = static_cast<int>(MembersOf(place).size());
    ++open_instances_;
  }
  Instance& instance = instances[place.instance];
  instance.last_submitted = now;
  ++instance.submitted;
  Submission own{submission.ticket,
                 *submission.signature,
                 submission.first_dims,
                 submission.transient,
                 submission.site,
                 now,
                 State::kPending,
                 0,
                 {}};
  own.tensors_left = std::max<std::size_t>(own.signature.tensors.size(), 1);
  own.tensors_run.resize(own.tensors_left);
  const bool join = own.signature.kind == OpKind::kJoin;
  instance.by_rank[static_cast<std::size_t>(rank)] = std::move(own);
  if (join) Joined(rank, now);
}

void Checker::Joined(int rank, TimePoint now) {
  RankState& self = At(rank);
  self.joined = true;
  last_join_ = now;
  const std::size_t join = self.joins++;
  if (join_sizes_.size() <= join) {
    join_sizes_.push_back(0);
    join_counts_.emplace_back();
  }
  if (++join_sizes_[join] < ranks_.size()) return;
  ++statistics_.joins;
  join_counts_[join].resize(scenario_.names.size());
  for (const RankState& other : ranks_) {
    for (std::size_t name = 0; name < other.submitted.size(); ++name) {
      join_counts_[join][name] = std::max(join_counts_[join][name], other.submitted[name]);
    }
  }
}

/// Goes on where the ranks are that had the most data.
void Checker::JoinEnded(int rank, bool well, TimePoint now) {
  RankState& self = At(rank);
  self.joined = false;
  if (!well) return;
  const std::vector<std::size_t>& counts = join_counts_[self.joins - 1];
  if (counts.empty()) return Fail(Format("rank {}'s join ends before all have joined", rank));
  for (std::size_t name = 0; name < counts.size(); ++name) {
    if (scenario_.name_sets[name] != kWorldSet) continue;
    for (; self.submitted[name] < counts[name]; ++self.submitted[name]) {
      EndedOnOneRank(instances_[name][self.submitted[name]], now);
    }
  }
}

void Checker::Ran(int rank, const plan::Batch& batch, TimePoint now) {
  RankState& self = At(rank);
  if (self.gone) return Fail(Format("rank {} runs a batch after its end", rank));
  CheckSequence(rank, batch);
  if (batch.entries.empty()) return Fail(Format("batch {} is empty", batch.sequence));
  std::vector<Entry> entries;
  for (const plan::BatchEntry& entry : test::SingleTensors(batch)) {
    std::optional<Entry> own = RunEntry(rank, batch, entry, now);
    if (!own) return;
    entries.push_back(std::move(*own));
  }
  CheckSame(rank, batch, entries);
}

/// Batches between two of one rank are of process sets without it.
void Checker::CheckSequence(int rank, const plan::Batch& batch) {
  RankState& self = At(rank);
  if (batch.sequence <= self.last_sequence) {
    return Fail(
        Format("rank {} runs batch {} after batch {}", rank, batch.sequence, self.last_sequence));
  }
  const ProcessSetId set =
      batch.spec.kind == OpKind::kProcessSet ? kWorldSet : batch.spec.process_set;
  if (!scenario_.IsMember(set, rank)) {
    return Fail(Format("rank {} runs a batch of process set {}", rank, set));
  }
  for (std::uint64_t skipped = self.last_sequence + 1; skipped < batch.sequence; ++skipped) {
    const auto logged = log_.find(skipped);
    if (logged == log_.end()) {
      skipped_[skipped].push_back(rank);
    } else if (scenario_.IsMember(logged->second.batch.spec.process_set, rank)) {
      return Fail(Format("rank {} runs batch {} without batch {}", rank, batch.sequence, skipped));
    }
  }
  self.last_sequence = batch.sequence;
  for (const int skipper : skipped_[batch.sequence]) {
    if (scenario_.IsMember(set, skipper)) {
      return Fail(Format("rank {} did not run batch {}", skipper, batch.sequence));
    }
  }
  skipped_.erase(batch.sequence);
}

std::optional<Checker::Entry> Checker::RunEntry(int rank, const plan::Batch& batch,
                                                const plan::BatchEntry& entry, TimePoint now) {
  RankState& self = At(rank);
  if (entry.zeros) {
    if (!self.joined) Fail(Format("rank {} runs zeros without having joined", rank));
    ++statistics_.zeros;
    return Entry{std::nullopt, entry.first_tensor, entry.first_dims, *entry.zeros};
  }
  const auto found = self.places.find(entry.ticket);
  if (found == self.places.end()) {
    Fail(Format("rank {} runs ticket {}, which it never submitted", rank, entry.ticket));
    return std::nullopt;
  }
  const Place place = found->second;
  Submission& submission = SubmissionAt(rank, place);
  if (submission.state != State::kPending || entry.first_tensor >= submission.tensors_run.size() ||
      submission.tensors_run[entry.first_tensor]) {
    Fail(Format("rank {} runs tensor {} of {} twice, or after its end", rank, entry.first_tensor,
                Text(place)));
    return std::nullopt;
  }
  if (submission.signature.process_set != batch.spec.process_set) {
    Fail(Format("rank {} runs {} in process set {}", rank, Text(place), batch.spec.process_set));
  }
  submission.tensors_run[entry.first_tensor] = true;
  if (--submission.tensors_left == 0) {
    submission.state = State::kRan;
    --self.pending;
    Instance& instance = InstanceAt(place);
    EndedOnOneRank(instance, now);
    const std::optional<Duration> patience = PatienceWithDecisions();
    if (patience && now - std::max(instance.last_submitted, last_join_) > *patience) {
      Fail(Format("{} runs late on rank {}", Text(place), rank));
    }
    ++statistics_.operations_run;
    if (submission.signature.kind == OpKind::kJoin) JoinEnded(rank, true, now);
  }
  return Entry{place, entry.first_tensor, entry.first_dims, 0};
}

bool Checker::IsSame(const Entry& a, const Entry& b) const {
  if (a.tensor_index != b.tensor_index || a.first_dims != b.first_dims) return false;
  if (a.place && b.place) {
    return a.place->name_index == b.place->name_index && a.place->instance == b.place->instance;
  }
  if (!a.place && !b.place) return a.zeros == b.zeros;
  const wire::Signature& signature = AnySubmission(a.place ? *a.place : *b.place).signature;
  const std::int64_t zeros = a.place ? b.zeros : a.zeros;
  return ElementCount(signature.tensors[a.tensor_index].shape) == zeros;
}

/// All ranks run the same batches. Of zeros it is known only then what they stand for.
void Checker::CheckSame(int rank, const plan::Batch& batch, const std::vector<Entry>& entries) {
  const auto [found, is_new] = log_.try_emplace(batch.sequence);
  LoggedBatch& logged = found->second;
  if (is_new) {
    logged.batch = batch;
    logged.batch.entries.clear();
    logged.entries = entries;
    ++statistics_.batches;
    if (entries.size() > 1) ++statistics_.fused_batches;
    if (batch.spec.kind == OpKind::kProcessSet) {
      ++statistics_.registrations;
    } else if (batch.spec.process_set != kWorldSet) {
      ++statistics_.set_batches;
    }
  }
  bool same = SameSpec(logged.batch, batch) && logged.entries.size() == entries.size();
  for (std::size_t i = 0; same && i < entries.size(); ++i) {
    same = IsSame(logged.entries[i], entries[i]);
    if (!logged.entries[i].place) logged.entries[i] = entries[i];
  }
  if (!same) return Fail(Format("batch {} is not the same on rank {}", batch.sequence, rank));
  const bool complete = std::all_of(logged.entries.begin(), logged.entries.end(),
                                    [](const Entry& entry) { return entry.place.has_value(); });
  if (!complete || logged.checked) return;
  logged.checked = true;
  for (const Entry& entry : logged.entries) CheckAgreement(entry);
  if (!violation_) CheckFusion(batch, logged.entries);
}

/// Every member has submitted it, or has joined, with the same signature; at the same place, where
/// places count.
void Checker::CheckAgreement(const Entry& entry) {
  const Instance& instance = InstanceAt(*entry.place);
  if (instance.failure) return Fail(Text(*entry.place) + " runs although it has failed");
  const Submission& first = AnySubmission(*entry.place);
  const std::string* site = nullptr;
  for (const int rank : MembersOf(*entry.place)) {
    const auto& submission = instance.by_rank[static_cast<std::size_t>(rank)];
    if (!submission || submission->state == State::kFailed) {
      if (first.signature.kind == OpKind::kAllreduce && SetOf(*entry.place) == kWorldSet &&
          At(rank).joins > 0) {
        continue;
      }
      return Fail(Format("{} runs without rank {}", Text(*entry.place), rank));
    }
    if (!(first.signature == submission->signature)) {
      return Fail(Format("{} runs although rank {} disagrees", Text(*entry.place), rank));
    }
    // Joins of all places are one.
    if (submission->site.empty() || first.signature.kind == OpKind::kJoin) continue;
    if (site == nullptr) site = &submission->site;
    if (submission->transient && *site != submission->site &&
        scenario_.options.unnamed_sites == plan::UnnamedSites::kError) {
      return Fail(Format("{} runs although rank {} is elsewhere", Text(*entry.place), rank));
    }
  }
  CheckDims(entry);
}

/// The numbers are those that the ranks announced.
void Checker::CheckDims(const Entry& entry) {
  const Instance& instance = InstanceAt(*entry.place);
  const OpKind kind = AnySubmission(*entry.place).signature.kind;
  const std::vector<int>& members = MembersOf(*entry.place);
  std::vector<std::int64_t> expected;
  if (kind == OpKind::kJoin) {
    if (entry.first_dims.size() != 1) Fail("a join without the last rank");
    return;
  }
  if (kind == OpKind::kAllgather || kind == OpKind::kAlltoall) {
    const std::size_t width = kind == OpKind::kAlltoall ? members.size() : 1;
    for (const int rank : members) {
      const auto& dims = instance.by_rank[static_cast<std::size_t>(rank)]->first_dims;
      const auto begin = dims.begin() + static_cast<std::ptrdiff_t>(entry.tensor_index * width);
      expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
  }
  if (kind == OpKind::kAlltoall) ++statistics_.matrices;
  if (entry.first_dims != expected) Fail(Text(*entry.place) + " runs with wrong dimensions");
}

void Checker::CheckFusion(const plan::Batch& batch, const std::vector<Entry>& entries) {
  std::uint64_t bytes = 0;
  for (const Entry& entry : entries) {
    const wire::Signature& signature = AnySubmission(*entry.place).signature;
    bool fits = signature.kind == batch.spec.kind;
    switch (signature.kind) {
      case OpKind::kAllreduce:
      case OpKind::kReducescatter:
        fits = fits && signature.reduce_op == batch.spec.reduce_op &&
               signature.prescale == batch.spec.prescale &&
               signature.postscale == batch.spec.postscale &&
               signature.tensors[entry.tensor_index].dtype == batch.dtype;
        break;
      case OpKind::kBroadcast:
        fits = fits && signature.root_rank == batch.spec.root_rank;
        break;
      case OpKind::kAllgather:
      case OpKind::kAlltoall:
        break;
      default:  // stays alone
        fits = fits && entries.size() == 1;
        continue;
    }
    fits = fits && signature.process_set == batch.spec.process_set;
    if (!fits) Fail(Format("batch {} mixes what does not fit", batch.sequence));
    std::uint64_t rows = 1;
    if (signature.kind == OpKind::kAllgather) {
      rows = 0;
      for (const std::int64_t dim : entry.first_dims) rows += static_cast<std::uint64_t>(dim);
    } else if (signature.kind == OpKind::kAlltoall) {
      rows = MostReceived(entry.first_dims, MembersOf(*entry.place).size());
    }
    bytes += rows * ElementBytes(signature.tensors[entry.tensor_index]);
  }
  const std::size_t threshold = scenario_.options.fusion_threshold_bytes;
  if (entries.size() > 1 && (threshold == 0 || bytes > threshold)) {
    Fail(Format("batch {} has {} bytes in {} tensors, the threshold is {}", batch.sequence, bytes,
                entries.size(), threshold));
  }
}

void Checker::Finished(int rank, const plan::Completion& completion, TimePoint now) {
  RankState& self = At(rank);
  const auto found = self.places.find(completion.ticket);
  if (found == self.places.end()) {
    return Fail(
        Format("rank {} finishes ticket {}, which it never submitted", rank, completion.ticket));
  }
  const Place place = found->second;
  Submission& submission = SubmissionAt(rank, place);
  if (submission.state != State::kPending) {
    return Fail(Format("{} ends twice on rank {}", Text(place), rank));
  }
  if (submission.tensors_left < submission.tensors_run.size()) {
    return Fail(Format("{} fails on rank {} after it has begun", Text(place), rank));
  }
  if (completion.status.ok()) return Fail(Text(place) + " ends well without running");
  if (completion.status.message().starts_with(kDeadlock)) CheckDeadlock(completion.status);
  submission.state = State::kFailed;
  --self.pending;
  EndedOnOneRank(InstanceAt(place), now);
  if (submission.signature.kind == OpKind::kJoin) JoinEnded(rank, false, now);
  CheckFailure(rank, place, completion.status, now);
}

void Checker::Blocked(int rank, plan::Ticket ticket) { At(rank).blocked = At(rank).places[ticket]; }

/// Of those that are blocked, who has not submitted what blocks this rank.
std::set<int> Checker::WaitsFor(int rank) const {
  const RankState& self = ranks_[static_cast<std::size_t>(rank)];
  if (!IsBlocked(rank)) return {};
  const Instance& instance = instances_[self.blocked->name_index][self.blocked->instance];
  std::set<int> others;
  for (int other = 0; other < scenario_.size; ++other) {
    if (!IsBlocked(other) || !scenario_.IsMember(SetOf(*self.blocked), other)) continue;
    const auto& theirs = instance.by_rank[static_cast<std::size_t>(other)];
    // What failed with its round is no partner of what was submitted after it.
    const bool passed = theirs && instance.round_ended && theirs->state == State::kFailed;
    if (!theirs || passed) others.insert(other);
  }
  return others;
}

bool Checker::IsBlocked(int rank) const {
  const RankState& self = ranks_[static_cast<std::size_t>(rank)];
  if (!self.blocked || self.gone || self.joined) return false;
  const Instance& instance = instances_[self.blocked->name_index][self.blocked->instance];
  return instance.by_rank[static_cast<std::size_t>(rank)]->state == State::kPending;
}

/// Who has to go on before this rank can.
std::set<int> Checker::WaitsInTheEndFor(int rank) const {
  std::set<int> found;
  std::vector<int> open = {rank};
  while (!open.empty()) {
    const int one = open.back();
    open.pop_back();
    for (const int other : WaitsFor(one)) {
      if (found.insert(other).second) open.push_back(other);
    }
  }
  return found;
}

/// Whether there are ranks each of which has to go on before any other one can, of which one at
/// least is blocked in an unnamed operation.
bool Checker::IsDeadlock() const {
  for (int rank = 0; rank < scenario_.size; ++rank) {
    if (!IsBlocked(rank)) continue;
    const Place& place = *ranks_[static_cast<std::size_t>(rank)].blocked;
    const Submission& own =
        *instances_[place.name_index][place.instance].by_rank[static_cast<std::size_t>(rank)];
    if (!plan::HasRound(own.signature.kind, own.transient)) continue;
    const std::set<int> core = WaitsInTheEndFor(rank);
    const bool closed = std::all_of(core.begin(), core.end(), [&](int other) {
      return WaitsInTheEndFor(other).contains(rank);
    });
    if (closed && !core.empty()) return true;
  }
  return false;
}

/// Who has heard of it is not blocked any more, so the first one that hears of it tells.
void Checker::CheckDeadlock(const Status& status) {
  if (!deadlocks_.insert(status.message()).second) return;
  ++statistics_.deadlocks;
  if (!IsDeadlock()) Fail("ranks could go on: " + status.ToString());
}

void Checker::CheckFailure(int rank, const Place& place, const Status& status, TimePoint now) {
  Instance& instance = InstanceAt(place);
  const wire::Signature& own = SubmissionAt(rank, place).signature;
  const bool deadlock = status.message().starts_with(kDeadlock);
  if (deadlock && plan::HasRound(own.kind, SubmissionAt(rank, place).transient)) {
    ++statistics_.ended_rounds;
    if (!instance.round_ended) instance.round_ended = now;
    return;
  }
  const auto complain = [&](std::string_view what) {
    Fail(Format("{} on rank {}: {} ({})", Text(place), rank, what, status.ToString()));
  };
  if (status.message().find(scenario_.names[place.name_index]) == std::string::npos) {
    complain("the error does not name the operation");
  }
  if (status.code() == StatusCode::kAborted) {  // local: a rank has left
    ++statistics_.departures;
    if (!HasLeft(status.culprit_rank())) complain("the rank blamed has not left");
    return;
  }
  if (instance.failure) {
    if (!(*instance.failure == status)) {
      complain(Format("another rank heard: {}", instance.failure->ToString()));
    }
  } else {
    instance.failure = status;
    if (status.code() == StatusCode::kTimeout) {
      const Duration limit = scenario_.options.stall_shutdown;
      if (!scenario_.options.stall_check || limit == Duration{} ||
          now - instance.first_submitted < limit) {
        complain("too early for a timeout");
      }
    } else if (status.code() == StatusCode::kMismatch && !deadlock) {
      CheckMismatch(place, status);
    } else if (!deadlock) {
      complain("unexpected code");
    }
  }
  status.code() == StatusCode::kTimeout ? ++statistics_.timeouts : ++statistics_.mismatches;
}

void Checker::CheckMismatch(const Place& place, const Status& status) {
  const Instance& instance = InstanceAt(place);
  const Submission& first = AnySubmission(place);
  bool differs = false;
  bool elsewhere = false;
  bool joined = false;
  for (const int rank : MembersOf(place)) {
    const auto& submission = instance.by_rank[static_cast<std::size_t>(rank)];
    if (!submission) {
      joined = joined || (SetOf(place) == kWorldSet && At(rank).joins > 0);
      continue;
    }
    differs = differs || !(first.signature == submission->signature);
    elsewhere = elsewhere || (submission->transient && first.site != submission->site);
  }
  if (differs || (joined && first.signature.kind != OpKind::kAllreduce)) return;
  if (elsewhere && scenario_.options.unnamed_sites == plan::UnnamedSites::kError) {
    ++statistics_.strayed_sites;
    return;
  }
  Fail(Format("{}: nobody disagrees ({})", Text(place), status.ToString()));
}

void Checker::Fatal(int rank, const Status& status, TimePoint now) {
  RankState& self = At(rank);
  ++statistics_.fatal_ranks;
  if (self.gone) return Fail(Format("rank {} ends twice", rank));
  self.gone = true;
  const auto complain = [&](std::string_view what) {
    Fail(Format("rank {}: {} ({}, culprit {})", rank, what, status.ToString(),
                status.culprit_rank()));
  };
  if (status.code() == StatusCode::kTimeout && MayHangInThaw()) {
    timed_out_ = true;
    return;
  }
  if (timed_out_) return;
  if (!scenario_.IsCulprit(status.culprit_rank())) return complain("the culprit is another rank");
  if (status.code() == StatusCode::kAborted) {
    if (!HasLeft(status.culprit_rank())) complain("the rank blamed has not left");
    return;
  }
  const StatusCode expected =
      scenario_.HasFault(FaultKind::kCrash) ? StatusCode::kUnavailable : StatusCode::kInternal;
  if (!crashed_) complain("a fatal error without a crash");
  constexpr Duration kPatience = std::chrono::milliseconds(500);
  if (scenario_.pause_percent == 0 && now - crashed_at_ > kPatience) complain("too late");
  if (scenario_.faults.size() == 1 && status.code() != expected) complain("the wrong code");
}

/// While a plan thaws, a rank that stands still for longer than operations may ends the session.
bool Checker::MayHangInThaw() const {
  const plan::Options& options = scenario_.options;
  return options.freeze_after > 0 && options.stall_check && options.stall_shutdown > Duration{} &&
         scenario_.pause_percent > 0;
}

void Checker::Noticed(int rank, const plan::Notice& notice) {
  if (notice.level == LogLevel::kDebug) return;
  ++statistics_.notices;
  const bool of_sites = scenario_.options.unnamed_sites == plan::UnnamedSites::kWarn;
  if (rank != 0 || !(scenario_.options.stall_check || of_sites))
    Fail("an unexpected notice: " + notice.text);
}

void Checker::Died(int rank, TimePoint now) {
  At(rank).gone = true;
  crashed_ = true;
  crashed_at_ = now;
}

void Checker::Left(int rank) {
  At(rank).gone = true;
  At(rank).left = true;
  departed_ = true;
}

bool Checker::HasLeft(int rank) const {
  return rank >= 0 && rank < scenario_.size && ranks_[static_cast<std::size_t>(rank)].left;
}

void Checker::Remembers(int rank, std::size_t names, TimePoint now) {
  // In flight here, with an id, or failed before this rank submitted it; on rank 0 also what the
  // coordinator keeps: the same, the ids of a second epoch, and failures until all ranks, which may
  // stand still for a while, have acknowledged them.
  constexpr Duration kAcknowledged = std::chrono::seconds(10);
  while (!failed_at_.empty() && now - failed_at_.front() > kAcknowledged) failed_at_.pop_front();
  const std::size_t ids = scenario_.options.intern_capacity;
  std::size_t bound = At(rank).pending + ids + open_instances_;
  if (rank == 0) bound += 2 * ids + open_instances_ + failed_at_.size();
  if (names > bound) Fail(Format("rank {} remembers {} names, more than {}", rank, names, bound));
}

void Checker::EndedOnOneRank(Instance& instance, TimePoint now) {
  if (++instance.ended < instance.members) return;
  --open_instances_;
  if (instance.failure) failed_at_.push_back(now);
}

void Checker::AtEnd(TimePoint now) {
  for (std::size_t name = 0; name < instances_.size(); ++name) {
    for (std::size_t k = 0; k < instances_[name].size(); ++k) {
      for (int rank = 0; rank < scenario_.size; ++rank) CheckPendingAtEnd({name, k}, rank, now);
    }
  }
  if (IsDeadlock()) Fail("ranks wait for each other for ever");
  for (int rank = 0; rank < scenario_.size; ++rank) {
    if (crashed_ && !At(rank).gone) {
      Fail(Format("rank {} lives on after the crash of another one", rank));
    }
  }
}

/// Liveness: what all ranks have submitted has ended, and so has what could not be.
void Checker::CheckPendingAtEnd(const Place& place, int rank, TimePoint now) {
  const Instance& instance = InstanceAt(place);
  const auto& submission = instance.by_rank[static_cast<std::size_t>(rank)];
  if (!submission || submission->state != State::kPending || At(rank).gone) return;
  // What was submitted after its round has ended lacks those of the others that failed with it.
  if (instance.round_ended && submission->at >= *instance.round_ended) return;
  const plan::Options& options = scenario_.options;
  const std::vector<int>& members = MembersOf(place);
  const bool is_join = submission->signature.kind == OpKind::kJoin;
  const bool all = std::all_of(members.begin(), members.end(), [&](int member) {
    return instance.by_rank[static_cast<std::size_t>(member)] ||
           (At(member).joined && !is_join && SetOf(place) == kWorldSet);
  });
  if (all) {
    return Fail(
        Format("{} never ends on rank {} although all have submitted it", Text(place), rank));
  }
  if (departed_) {
    return Fail(Format("{} never ends on rank {} although a rank has left", Text(place), rank));
  }
  if (instance.failure) {
    return Fail(Format("{} never ends on rank {} although it has failed", Text(place), rank));
  }
  if (options.stall_check && options.stall_shutdown != Duration{}) {
    return Fail(Format("{} never times out on rank {}", Text(place), rank));
  }
  const Duration age = now - instance.first_submitted;
  if (options.stall_check && age > 2 * options.stall_warning && statistics_.notices == 0) {
    Fail(Format("{} stalls on rank {} without a notice", Text(place), rank));
  }
}

}  // namespace hvl::sim
