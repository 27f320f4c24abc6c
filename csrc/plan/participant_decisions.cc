// How a participant carries out what has been decided: batches and failures.
#include <algorithm>
#include <span>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/plan/frame_rules.h"
#include "csrc/plan/participant.h"

namespace hvl::plan {
namespace {

// Failures of operations that this rank never submitted; far beyond any program that recovers.
constexpr std::size_t kMaxOwed = 65536;

Status Misfit(const wire::Signature& signature) {
  return Nonsense(Format("'{}' is fused with what it cannot share", signature.name));
}

/// Numbers in a decision for each tensor.
std::size_t DecidedDims(OpKind kind, std::size_t ranks) {
  if (kind == OpKind::kAllgather) return ranks;
  if (kind == OpKind::kAlltoall) return ranks * ranks;
  return kind == OpKind::kJoin ? 1 : 0;
}

}  // namespace

bool Fuse(const wire::Signature& signature, DType dtype, Batch& batch, FusionKey& key) {
  if (!batch.entries.empty()) {
    return wire::HasTensors(signature.kind) && key == KeyOf(signature, dtype);
  }
  key = KeyOf(signature, dtype);
  batch.spec = SpecOf(signature);
  batch.dtype = dtype;
  return true;
}

bool FuseRange(const wire::Signature& signature, TensorRange range, Batch& batch, FusionKey& key) {
  if (signature.tensors.empty()) return Fuse(signature, DType::kUint8, batch, key);
  const auto tensors = std::span(signature.tensors).subspan(range.first, range.count);
  if (!Fuse(signature, tensors.front().dtype, batch, key)) return false;
  DType dtype = tensors.front().dtype;
  return std::all_of(tensors.begin(), tensors.end(), [&](const wire::TensorSignature& tensor) {
    return tensor.dtype == dtype || key == KeyOf(signature, dtype = tensor.dtype);
  });
}

Status Participant::ApplyBatch(const wire::DecidedBatch& decided, Effects& effects) {
  const std::uint64_t sequence = ++last_sequence_;
  ProcessSet* const set = sets_.Find(decided.process_set);
  if (set == nullptr) {
    return Nonsense(Format("a batch of process set {}, which does not exist", decided.process_set));
  }
  set->last_sequence = sequence;
  if (!set->members.Contains(rank_)) return SkipBatch(decided);
  Assembly assembly{.decided = decided, .set = *set, .batch = {}, .key = {}, .next_dim = 0};
  assembly.batch.sequence = sequence;
  std::size_t operations = 0;
  for (const wire::Member& member : decided.members) operations += member.count;
  assembly.batch.entries.reserve(std::min(operations, by_id_.size() + decided.members.size()));
  for (const wire::Member& member : decided.members) {
    HVL_RETURN_IF_ERROR(ApplyMember(member, assembly));
  }
  if (assembly.next_dim != decided.first_dims.size()) {
    return Nonsense("a batch with too many dimensions");
  }
  if (assembly.batch.spec.kind == OpKind::kProcessSet) {
    HVL_RETURN_IF_ERROR(ApplyRegistration(assembly.batch.spec));
  }
  effects.run.push_back(std::move(assembly.batch));
  return Status::Ok();
}

Status Participant::SkipBatch(const wire::DecidedBatch& decided) {
  for (const wire::Member& member : decided.members) {
    if (!member.id) continue;
    if (member.name.empty() ? std::uint64_t{*member.id} + member.count > by_id_.size()
                            : *member.id != by_id_.size()) {
      return Nonsense(
          Format("id {} of {} in process set {}", *member.id, by_id_.size(), decided.process_set));
    }
    if (!member.name.empty()) by_id_.push_back(kNoIndex);
  }
  return Status::Ok();
}

Status Participant::ApplyRegistration(const BatchSpec& registration) {
  const ProcessSetId id = registration.process_set;
  if (!sets_.Apply(id, registration.ranks)) {
    return Nonsense(Format("process set {} added twice, or removed without being there", id));
  }
  if (!registration.ranks.empty()) return Status::Ok();
  for (Index index = 0; index < records_.bound(); ++index) {
    if (records_[index].set == id && records_[index].in_flight) {
      return Nonsense(Format("process set {} ends before its '{}'", id, records_.name(index)));
    }
  }
  DropOwed(id);
  return Status::Ok();
}

Status Participant::ApplyMember(const wire::Member& member, Assembly& assembly) {
  const ProcessSetId set = assembly.decided.process_set;
  if (!member.name.empty()) {
    std::optional<Index> index = records_.Find(set, member.name);
    if (member.id) HVL_RETURN_IF_ERROR(GiveId(member, set, index));
    return ApplyOperation(member, index, assembly);
  }
  const std::uint64_t end = std::uint64_t{*member.id} + member.count;
  if (end > by_id_.size()) return Nonsense(Format("id {} of {}", end - 1, by_id_.size()));
  for (std::uint64_t id = *member.id; id < end; ++id) {
    const Index index = by_id_[static_cast<std::size_t>(id)];
    if (index == kNoIndex || records_[index].set != set) {
      return Nonsense(Format("id {} is not of process set {}", id, set));
    }
    HVL_RETURN_IF_ERROR(ApplyOperation(member, index, assembly));
  }
  return Status::Ok();
}

Status Participant::ApplyOperation(const wire::Member& member, std::optional<Index> index,
                                   Assembly& assembly) {
  Record* const record = index ? &records_[*index] : nullptr;
  if (record == nullptr || !record->in_flight) {
    if (StandsJoined(assembly.decided.process_set)) return AppendZeros(member, index, assembly);
    return Nonsense(Format("'{}' was not announced", index ? records_.name(*index) : member.name));
  }
  if (record->unsent) return Nonsense(Format("'{}' runs too early", records_.name(*index)));
  HVL_RETURN_IF_ERROR(AppendTensors(*record, member.range, assembly));
  if (record->undispatched > 0) return Status::Ok();
  // Agreed on: from now on the id means this signature.
  NoteEnded(*index);
  if (!record->as_agreed) record->agreed = std::move(record->proposal);
  ReleaseIfUnused(*index);
  return Status::Ok();
}

/// A name gets the next id; or, with a signature, the id that it has stands for that from now on.
Status Participant::GiveId(const wire::Member& member, ProcessSetId set,
                           std::optional<Index>& index) {
  const bool has_id = index && records_[*index].id;
  if (has_id && member.signature && records_[*index].id == member.id) return Status::Ok();
  if (has_id || *member.id != by_id_.size() || (!index && !member.signature)) {
    return Nonsense(Format("id {} for '{}', expected {}", *member.id, member.name, by_id_.size()));
  }
  if (!index) index = records_.Add(set, member.name);
  records_[*index].id = member.id;
  by_id_.push_back(*index);
  return Status::Ok();
}

/// True when this rank takes part in what it did not submit.
bool Participant::StandsJoined(ProcessSetId set) const {
  return set == kWorldSet && join_ && !records_[*join_].unsent;
}

Status Participant::AppendZeros(const wire::Member& member, std::optional<Index> index,
                                Assembly& assembly) {
  if (index && member.signature) records_[*index].agreed = *member.signature;
  const bool known = index && records_[*index].id;
  if (!member.signature && !known) {
    return Nonsense(
        Format("'{}' runs without a signature for rank {}, which has joined", member.name, rank_));
  }
  const wire::Signature& signature = known ? *records_[*index].agreed : *member.signature;
  if (signature.kind != OpKind::kAllreduce || OwnerOf(signature) != kWorldSet) {
    return Nonsense(
        Format("'{}', which is no allreduce of the world, runs although rank {} has "
               "joined",
               signature.name, rank_));
  }
  const std::uint64_t total = signature.tensors.size();
  const std::uint64_t first = member.range ? member.range->first_tensor : 0;
  const std::uint64_t count = member.range ? member.range->tensor_count : total;
  if (count == 0 || first + count > total) {
    return Nonsense(
        Format("tensors {} to {} of {} in '{}'", first, first + count, total, signature.name));
  }
  for (std::uint64_t i = first; i < first + count; ++i) {
    const wire::TensorSignature& tensor = signature.tensors[i];
    if (!Fuse(signature, tensor.dtype, assembly.batch, assembly.key)) return Misfit(signature);
    const std::int64_t elements = ElementCount(tensor.shape);
    if (elements < 0) return Nonsense(Format("a shape in '{}' is too large", signature.name));
    assembly.batch.entries.push_back({0, static_cast<std::uint32_t>(i), 1, {}, elements});
  }
  return Status::Ok();
}

Status Participant::AppendTensors(Record& record,
                                  const std::optional<wire::Member::TensorRange>& range,
                                  Assembly& assembly) {
  const std::string& name = record.signature().name;
  const std::uint64_t total = std::max<std::size_t>(record.signature().tensors.size(), 1);
  const std::uint64_t first = range ? range->first_tensor : 0;
  const std::uint64_t count = range ? range->tensor_count : total;
  if (count == 0 || first + count > total) {
    return Nonsense(Format("tensors {} to {} of {} in '{}'", first, first + count, total, name));
  }
  if (record.undispatched < count || (!range && record.undispatched != total)) {
    return Nonsense(Format("'{}' runs twice", name));
  }
  if (range && record.dispatched.empty()) record.dispatched.resize(total);
  for (std::uint64_t i = first; range && i < first + count; ++i) {
    if (record.dispatched[i]) return Nonsense(Format("tensor {} of '{}' runs twice", i, name));
    record.dispatched[i] = true;
  }
  if (!FuseRange(record.signature(), {first, count}, assembly.batch, assembly.key)) {
    return Misfit(record.signature());
  }
  BatchEntry entry{
      record.ticket, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count), {}};
  const std::uint64_t dim_count =
      count * DecidedDims(record.signature().kind, assembly.set.count());
  if (dim_count > 0) {
    const auto& dims = assembly.decided.first_dims;
    if (dims.size() - assembly.next_dim < dim_count) {
      return Nonsense("a batch with too few dimensions");
    }
    const auto begin = dims.begin() + static_cast<std::ptrdiff_t>(assembly.next_dim);
    entry.first_dims.assign(begin, begin + static_cast<std::ptrdiff_t>(dim_count));
    assembly.next_dim += dim_count;
  }
  assembly.batch.entries.push_back(std::move(entry));
  record.undispatched -= count;
  return Status::Ok();
}

Status Participant::ApplyFailure(const wire::Failure& failure, Effects& effects) {
  const ProcessSet* const set = sets_.Find(failure.process_set);
  if (set == nullptr) {
    return Nonsense(Format("'{}' of process set {} fails, which does not exist", failure.name,
                           failure.process_set));
  }
  if (!set->members.Contains(rank_)) return Status::Ok();
  if (failure.name.empty()) return EndRound(failure.process_set, failure.status, effects);
  const std::optional<Index> found = records_.Find(failure.process_set, failure.name);
  if (found && records_[*found].in_flight) {
    // Also if it is not announced yet: it belongs to the failed instance, because the coordinator
    // counts everything that this rank announces from now on to the next one.
    if (!records_[*found].dispatched.empty()) {
      return Nonsense(Format("'{}' fails after it has begun", failure.name));
    }
    acknowledge_ = acknowledge_ || records_[*found].unsent;
    Finish(*found, failure.status, effects);
    return Status::Ok();
  }
  if (join_ && failure.process_set == kWorldSet) return Status::Ok();  // see NoteInFlight
  if (owed_count_ == kMaxOwed) {
    return {StatusCode::kResourceExhausted,
            Format("{} operations have failed that rank {} never submitted; the ranks do not run "
                   "the same program",
                   owed_count_, rank_),
            rank_};
  }
  records_[FindOrAdd(failure.process_set, failure.name)].owed.push_back(failure.status);
  ++owed_count_;
  acknowledge_ = true;
  return Status::Ok();
}

}  // namespace hvl::plan
