#include "tests/cpp/sim/checker.h"

#include <algorithm>
#include <utility>

#include "csrc/base/str.h"

namespace hvl::sim {
namespace {

std::uint64_t ElementBytes(const wire::TensorSignature& tensor) {
  return static_cast<std::uint64_t>(ElementCount(tensor.shape)) * DTypeBytes(tensor.dtype);
}

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
  departures += other.departures;
  fatal_ranks += other.fatal_ranks;
  notices += other.notices;
  epochs += other.epochs;
}

std::string Statistics::ToString() const {
  return Format(
      "{} seeds, {} events, {} frames, {} batches ({} fused), {} operations run, failed: {} by "
      "mismatch, {} by timeout, {} by departure; {} ranks ended by an error, {} stall notices, {} "
      "epochs",
      seeds, events, frames, batches, fused_batches, operations_run, mismatches, timeouts,
      departures, fatal_ranks, notices, epochs);
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
  return std::chrono::seconds(1) + 400 * scenario_.think + 10 * scenario_.long_latency +
         200 * scenario_.batch_time;
}

std::string Checker::Text(const Place& place) const {
  return Format("'{}' #{}", scenario_.names[place.name_index], place.instance);
}

void Checker::Submitted(int rank, plan::Ticket ticket, std::size_t name_index,
                        const wire::Signature& signature,
                        const std::vector<std::int64_t>& first_dims, TimePoint now) {
  RankState& self = At(rank);
  const Place place{name_index, self.submitted[name_index]++};
  self.places[ticket] = place;
  ++self.pending;
  auto& instances = instances_[name_index];
  if (instances.size() <= place.instance) {
    instances.emplace_back();
    instances.back().first_submitted = now;
    instances.back().by_rank.resize(ranks_.size());
    ++open_instances_;
  }
  Instance& instance = instances[place.instance];
  instance.last_submitted = now;
  ++instance.submitted;
  Submission submission{ticket, signature, first_dims, State::kPending, 0, {}};
  submission.tensors_left = std::max<std::size_t>(signature.tensors.size(), 1);
  submission.tensors_run.resize(submission.tensors_left);
  instance.by_rank[static_cast<std::size_t>(rank)] = std::move(submission);
}

void Checker::Ran(int rank, const plan::Batch& batch, TimePoint now) {
  RankState& self = At(rank);
  if (self.gone) return Fail(Format("rank {} runs a batch after its end", rank));
  if (batch.sequence != self.last_sequence + 1) {
    return Fail(
        Format("rank {} runs batch {} after batch {}", rank, batch.sequence, self.last_sequence));
  }
  self.last_sequence = batch.sequence;
  if (batch.entries.empty()) return Fail(Format("batch {} is empty", batch.sequence));
  std::vector<Entry> entries;
  for (const plan::BatchEntry& entry : batch.entries) {
    const auto found = self.places.find(entry.ticket);
    if (found == self.places.end()) {
      return Fail(Format("rank {} runs ticket {}, which it never submitted", rank, entry.ticket));
    }
    entries.push_back({found->second, entry.tensor_index, entry.first_dims});
    Submission& submission = SubmissionAt(rank, found->second);
    if (submission.state != State::kPending ||
        entry.tensor_index >= submission.tensors_run.size() ||
        submission.tensors_run[entry.tensor_index]) {
      return Fail(Format("rank {} runs tensor {} of {} twice, or after its end", rank,
                         entry.tensor_index, Text(found->second)));
    }
    submission.tensors_run[entry.tensor_index] = true;
    if (--submission.tensors_left > 0) continue;
    submission.state = State::kRan;
    --self.pending;
    Instance& instance = InstanceAt(found->second);
    EndedOnOneRank(instance, now);
    const std::optional<Duration> patience = PatienceWithDecisions();
    if (patience && now - instance.last_submitted > *patience) {
      Fail(Format("{} runs late on rank {}", Text(found->second), rank));
    }
    ++statistics_.operations_run;
  }
  if (batch.sequence == log_.size() + 1) CheckNewBatch(batch, entries);
  if (batch.sequence > log_.size()) return Fail(Format("batch {} comes too early", batch.sequence));
  const LoggedBatch& logged = log_[static_cast<std::size_t>(batch.sequence - 1)];
  const bool same = SameSpec(logged.batch, batch) &&
                    std::equal(logged.entries.begin(), logged.entries.end(), entries.begin(),
                               entries.end(), [](const Entry& a, const Entry& b) {
                                 return a.place.name_index == b.place.name_index &&
                                        a.place.instance == b.place.instance &&
                                        a.tensor_index == b.tensor_index &&
                                        a.first_dims == b.first_dims;
                               });
  if (!same) Fail(Format("batch {} is not the same on rank {}", batch.sequence, rank));
}

void Checker::CheckNewBatch(const plan::Batch& batch, const std::vector<Entry>& entries) {
  ++statistics_.batches;
  if (entries.size() > 1) ++statistics_.fused_batches;
  for (const Entry& entry : entries) CheckAgreement(entry);
  CheckFusion(batch, entries);
  log_.push_back({batch, entries});
  log_.back().batch.entries.clear();
}

/// Every rank has submitted it, with the same signature, and its dimensions are the true ones.
void Checker::CheckAgreement(const Entry& entry) {
  const Instance& instance = InstanceAt(entry.place);
  if (instance.failure) return Fail(Text(entry.place) + " runs although it has failed");
  const wire::Signature* first = nullptr;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& submission = instance.by_rank[rank];
    if (!submission) return Fail(Format("{} runs without rank {}", Text(entry.place), rank));
    if (first == nullptr) first = &submission->signature;
    if (!(*first == submission->signature)) {
      return Fail(Format("{} runs although rank {} disagrees", Text(entry.place), rank));
    }
    if (first->kind != OpKind::kAllgather) {
      if (!entry.first_dims.empty()) Fail("dimensions without an allgather");
      continue;
    }
    if (entry.first_dims.size() != ranks_.size() ||
        entry.first_dims[rank] != submission->first_dims[entry.tensor_index]) {
      return Fail(Format("{} runs with a wrong dimension of rank {}", Text(entry.place), rank));
    }
  }
}

void Checker::CheckFusion(const plan::Batch& batch, const std::vector<Entry>& entries) {
  std::uint64_t bytes = 0;
  for (const Entry& entry : entries) {
    const wire::Signature& signature = SubmissionAt(0, entry.place).signature;
    bool fits = signature.kind == batch.spec.kind;
    switch (signature.kind) {
      case OpKind::kAllreduce:
        fits = fits && signature.reduce_op == batch.spec.reduce_op &&
               signature.prescale == batch.spec.prescale &&
               signature.postscale == batch.spec.postscale &&
               signature.tensors[entry.tensor_index].dtype == batch.dtype;
        break;
      case OpKind::kBroadcast:
        fits = fits && signature.root_rank == batch.spec.root_rank;
        break;
      case OpKind::kAllgather:
        break;
      default:  // stays alone
        fits = fits && entries.size() == 1;
        continue;
    }
    if (!fits) Fail(Format("batch {} mixes what does not fit", batch.sequence));
    std::uint64_t rows = 1;
    if (signature.kind == OpKind::kAllgather) {
      rows = 0;
      for (const std::int64_t dim : entry.first_dims) rows += static_cast<std::uint64_t>(dim);
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
  submission.state = State::kFailed;
  --self.pending;
  EndedOnOneRank(InstanceAt(place), now);
  CheckFailure(rank, place, completion.status, now);
}

void Checker::CheckFailure(int rank, const Place& place, const Status& status, TimePoint now) {
  Instance& instance = InstanceAt(place);
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
    } else if (status.code() == StatusCode::kMismatch) {
      const wire::Signature* first = nullptr;
      bool differs = false;
      for (const auto& submission : instance.by_rank) {
        if (!submission) continue;
        if (first == nullptr) first = &submission->signature;
        differs = differs || !(*first == submission->signature);
      }
      if (!differs) complain("nobody disagrees");
    } else {
      complain("unexpected code");
    }
  }
  status.code() == StatusCode::kTimeout ? ++statistics_.timeouts : ++statistics_.mismatches;
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

void Checker::Noticed(int rank, const plan::Notice& notice) {
  ++statistics_.notices;
  if (rank != 0 || !scenario_.options.stall_check) Fail("an unexpected notice: " + notice.text);
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
  if (++instance.ended < scenario_.size) return;
  --open_instances_;
  if (instance.failure) failed_at_.push_back(now);
}

void Checker::AtEnd(TimePoint now) {
  for (std::size_t name = 0; name < instances_.size(); ++name) {
    for (std::size_t k = 0; k < instances_[name].size(); ++k) {
      for (int rank = 0; rank < scenario_.size; ++rank) CheckPendingAtEnd({name, k}, rank, now);
    }
  }
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
  const plan::Options& options = scenario_.options;
  if (instance.submitted == scenario_.size) {
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
