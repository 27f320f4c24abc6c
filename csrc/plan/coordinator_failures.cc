// The coordinator's rules for what goes wrong: mismatches, failures, stalls.
#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/plan/coordinator.h"
#include "csrc/plan/frame_rules.h"
#include "csrc/plan/mismatch.h"

namespace hvl::plan {
namespace {

// After a mismatch has been seen, wait this long for the ranks that have not submitted the name
// yet, so that the error can tell what each rank has.
constexpr Duration kMismatchGrace = std::chrono::seconds(1);

// Failed instances that some rank has not acknowledged: far beyond what a rank that answers leaves.
constexpr std::size_t kMaxOpenFailures = 65536;

// Pairs of places that were warned of; a program has far fewer.
constexpr std::size_t kMaxWarnedSites = 1000;

}  // namespace

// ---- failures

void Coordinator::CheckMismatch(Index index, TimePoint now) {
  Record& record = records_[index];
  if (record.mismatch_deadline) return;
  int proposed = 0;
  for (const Proposal& proposal : record.proposals) proposed += proposal.ranks.count();
  const bool alike = record.proposals.empty() ||
                     (record.proposals.size() == 1 && proposed == record.announced.count());
  if (alike && !SitesDisagree(record)) return;
  record.mismatch_deadline = now + kMismatchGrace;
  mismatched_.push_back(index);
}

void Coordinator::FailMismatch(Index index, Effects& effects) {
  const Record& record = records_[index];
  std::vector<Variant> variants;
  RankSet as_agreed = record.announced;
  for (const Proposal& proposal : record.proposals) {
    variants.push_back({&proposal.signature, proposal.ranks});
    as_agreed.EraseAll(proposal.ranks);
  }
  if (!as_agreed.empty()) variants.push_back({&record.agreed, as_agreed});
  std::sort(variants.begin(), variants.end(),
            [](const Variant& a, const Variant& b) { return a.ranks.First() < b.ranks.First(); });
  const Disagreement disagreement{records_.name(index),  sets_.Suffix(records_[index].set),
                                  std::move(variants),   record.sites,
                                  SitesDisagree(record), Missing(records_[index])};
  Fail(index, MismatchError(disagreement), effects);
}

/// Unnamed operations pair by their number alone: what comes from another place of the program is
/// another operation. (Joins of all places are one.)
bool Coordinator::SitesDisagree(const Record& record) const {
  return record.transient && record.sites.differ() && !record.joins &&
         options_.unnamed_sites == UnnamedSites::kError;
}

void Coordinator::WarnOfSites(Index index, Effects& effects) {
  const Record& record = records_[index];
  if (options_.unnamed_sites != UnnamedSites::kWarn || record.joins) return;
  if (warned_sites_.size() == kMaxWarnedSites) return;
  const std::vector<Sites::Site>& sites = record.sites.all();
  if (!warned_sites_.insert(std::minmax(sites[0].text, sites[1].text)).second) return;
  effects.notices.push_back(
      {LogLevel::kWarning,
       Format("unnamed operation '{}'{} was submitted at different places: {}. If these are "
              "different operations, the result is wrong: submit unnamed operations in the same "
              "order on all ranks, or name them. (HVL_UNNAMED_SITES=error makes this an error)",
              records_.name(index), sets_.Suffix(records_[index].set),
              record.sites.ToString(record.announced))});
}

Status Coordinator::RegistrationFault(const wire::Signature& registration) const {
  const ProcessSetId id = registration.process_set;
  const bool exists = sets_.Find(id) != nullptr;
  if (changing_.contains(id)) {
    return {StatusCode::kInvalidArgument,
            Format("'{}': process set {} is being added or removed by another operation",
                   registration.name, id)};
  }
  if (!registration.ranks.empty()) {
    if (!exists) return Status::Ok();
    return {StatusCode::kInvalidArgument,
            Format("'{}': process set {} exists already", registration.name, id)};
  }
  if (!exists) {
    return {StatusCode::kInvalidArgument,
            Format("'{}': process set {} does not exist", registration.name, id)};
  }
  for (Index index = oldest_; index != kNoIndex; index = records_[index].newer) {
    if (records_[index].set != id) continue;
    return {StatusCode::kMismatch,
            Format("'{}': '{}'{} is still waiting for {}; let all operations of a process set end "
                   "before it is removed",
                   registration.name, records_.name(index), sets_.Suffix(id),
                   Missing(records_[index]).ToString()),
            Missing(records_[index]).First()};
  }
  return Status::Ok();
}

void Coordinator::Fail(Index index, Status status, Effects& effects) {
  Record& record = records_[index];
  RankSet missing = Missing(records_[index]);
  NoteOther();
  Unlink(index);
  if (record.joins) {
    EndJoin(index);
    // What the join stands in for can only run before this failure.
    for (const auto& tensors : batcher_.TakeAll()) Dispatch(tensors);
  }
  wire::Decide& decide = Building();
  building_bytes_ += records_.name(index).size() + status.message().size();
  decide.failures.push_back({records_.name(index), std::move(status), records_[index].set});
  if (!missing.empty()) {
    ++record.open_failures;
    failed_.Add(index, decide.number, std::move(missing));
    if (failed_.size() > kMaxOpenFailures) {
      const int rank = failed_.SilentRank();
      effects.fatal = Status(
          StatusCode::kResourceExhausted,
          Format("{} operations have failed and rank {} has not heard of one of them: it hangs",
                 failed_.size(), rank),
          rank);
    }
  }
  DropInstance(index);
  if (building_bytes_ > kFrameBytes) CutDecision();
}

/// Of an operation that does not wait any more.
void Coordinator::DropInstance(Index index) {
  Record& record = records_[index];
  if (record.mismatch_deadline) std::erase(mismatched_, index);
  record.mismatch_deadline.reset();
  record.proposals.clear();
  record.phase = Phase::kIdle;
  ReleaseIfUnused(index);
}

bool Coordinator::BelongsToFailed(Index index, int from) {
  if (records_[index].open_failures == 0) return false;
  std::vector<Index> closed;
  const bool belongs = failed_.Consume(index, from, closed);
  CloseFailures(closed);
  return belongs;
}

void Coordinator::CloseFailures(const std::vector<Index>& records) {
  for (const Index index : records) {
    --records_[index].open_failures;
    ReleaseIfUnused(index);
  }
}

void Coordinator::ReleaseIfUnused(Index index) {
  const Record& record = records_[index];
  if (record.phase == Phase::kIdle && !record.id && !record.has_previous_id &&
      record.open_failures == 0) {
    records_.Remove(index);
  }
}

// ---- stalls

void Coordinator::LinkNewest(Index index) {
  Record& record = records_[index];
  record.older = newest_;
  record.newer = kNoIndex;
  (newest_ == kNoIndex ? oldest_ : records_[newest_].newer) = index;
  newest_ = index;
  if (!options_.stall_check) return;
  if (!kinds_check_at_) kinds_check_at_ = record.first_announced + DeadlockAge(options_);
  record.next_warning = record.first_announced + options_.stall_warning;
  const TimePoint due = record.first_announced + FirstStallAge();
  if (!stall_check_at_ || due < *stall_check_at_) stall_check_at_ = due;
}

void Coordinator::Unlink(Index index) {
  Record& record = records_[index];
  (record.older == kNoIndex ? oldest_ : records_[record.older].newer) = record.newer;
  (record.newer == kNoIndex ? newest_ : records_[record.newer].older) = record.older;
  if (oldest_ != kNoIndex) return;
  stall_check_at_.reset();
  kinds_check_at_.reset();
}

Duration Coordinator::FirstStallAge() const {
  if (options_.stall_shutdown == Duration{}) return options_.stall_warning;
  return std::min(options_.stall_warning, options_.stall_shutdown);
}

void Coordinator::Tick(TimePoint now, Effects& effects) {
  if (departed_) return;
  if (plan_) return CheckThaw(now, effects);
  const std::vector<Index> mismatched = mismatched_;  // FailMismatch changes it
  for (const Index index : mismatched) {
    if (records_[index].mismatch_deadline <= now) FailMismatch(index, effects);
  }
  if (kinds_check_at_ && *kinds_check_at_ <= now) CheckKinds(now, effects);
  if (stall_check_at_ && *stall_check_at_ <= now) CheckStalls(now, effects);
  Conclude();
}

const wire::Signature& Coordinator::LatestSignature(Index index) const {
  const Record& record = records_[index];
  return record.proposals.empty() ? record.agreed : record.proposals.front().signature;
}

// Cost: a look at every operation that waits, at most once in the grace.
void Coordinator::CheckKinds(TimePoint now, Effects& effects) {
  std::map<std::pair<ProcessSetId, std::string_view>, std::vector<Index>> same_name;
  kinds_check_at_.reset();
  for (Index index = oldest_; index != kNoIndex; index = records_[index].newer) {
    const TimePoint due = records_[index].first_announced + DeadlockAge(options_);
    if (due > now) {
      kinds_check_at_ = std::max(due, now + DeadlockAge(options_));
      break;  // the others are younger still
    }
    if (records_[index].transient) continue;
    const std::string_view name = UserName(records_.name(index), LatestSignature(index).kind);
    same_name[{records_[index].set, name}].push_back(index);
  }
  for (const auto& [name, indices] : same_name) {
    RankSet ranks(size_);
    bool apart = indices.size() > 1;  // no rank has submitted two of them
    std::vector<KindVariant> variants;
    for (const Index index : indices) {
      const Record& record = records_[index];
      const int before = ranks.count();
      ranks.InsertAll(record.announced);
      apart = apart && ranks.count() == before + record.announced.count();
      variants.push_back({records_.name(index), LatestSignature(index).kind, record.announced,
                          record.sites.ToString(record.announced)});
    }
    if (!apart) continue;
    const Status error = KindsError(std::string(name.second), sets_.Suffix(name.first), variants);
    for (const Index index : indices) Fail(index, error, effects);
  }
}

void Coordinator::CheckStalls(TimePoint now, Effects& effects) {
  // Operations that are nearly due are reported with those that are, so that the tensors of one
  // step make one notice and not many.
  const Duration tolerance = options_.stall_warning / 10;
  std::vector<StalledOperation> warned;
  std::vector<Index> expired;
  stall_check_at_.reset();
  const auto due = [this](TimePoint at) {
    if (!stall_check_at_ || at < *stall_check_at_) stall_check_at_ = at;
  };
  for (Index index = oldest_; index != kNoIndex; index = records_[index].newer) {
    Record& record = records_[index];
    const Duration age = now - record.first_announced;
    if (options_.stall_shutdown != Duration{} && age >= options_.stall_shutdown) {
      expired.push_back(index);
      continue;
    }
    if (record.next_warning - now <= tolerance) {
      warned.push_back(Stalled(index, now));
      // Ages of warnings: once, twice, four times, ... stall_warning.
      while (record.next_warning - now <= tolerance) {
        record.next_warning += record.next_warning - record.first_announced;
      }
    }
    due(record.next_warning);
    if (options_.stall_shutdown != Duration{})
      due(record.first_announced + options_.stall_shutdown);
    if (age + tolerance < FirstStallAge()) break;  // the others are younger still
  }
  if (!warned.empty()) effects.notices.push_back(StallNotice(warned));
  for (const Index index : expired) {
    Fail(index, StallError(Stalled(index, now), options_.stall_shutdown), effects);
  }
}

StalledOperation Coordinator::Stalled(Index index, TimePoint now) const {
  const Record& record = records_[index];
  return {records_.name(index),
          sets_.Suffix(records_[index].set),
          record.announced,
          Missing(records_[index]),
          record.sites.ToString(record.announced),
          now - record.first_announced};
}

std::optional<TimePoint> Coordinator::next_deadline() const {
  if (plan_) return ThawDeadline();
  std::optional<TimePoint> deadline = stall_check_at_;
  const auto consider = [&deadline](TimePoint at) {
    if (!deadline || at < *deadline) deadline = at;
  };
  if (kinds_check_at_) consider(*kinds_check_at_);
  for (const Index index : mismatched_) consider(*records_[index].mismatch_deadline);
  return deadline;
}

}  // namespace hvl::plan
