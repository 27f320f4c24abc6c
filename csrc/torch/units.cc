#include "csrc/torch/units.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <map>
#include <utility>

#include "csrc/torch/tensors.h"

namespace hvl::torch {
namespace {

constexpr std::size_t kAlignment = 64;  // no two buckets share a cache line

std::size_t Padded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

at::IntArrayRef BucketStrides(const at::Tensor& parameter, std::vector<std::int64_t>& row_major) {
  if (LayoutOf(parameter)) return parameter.strides();
  row_major.assign(static_cast<std::size_t>(parameter.dim()), 1);
  for (std::size_t i = row_major.size(); i-- > 1;) {
    row_major[i - 1] = row_major[i] * parameter.size(static_cast<std::int64_t>(i));
  }
  return row_major;
}

/// Gives a slot its bucket at `place`, which `memory` keeps.
void SetBucket(Slot& slot, const std::shared_ptr<const void>& memory, char* place) {
  const at::Tensor& parameter = slot.parameter;
  std::vector<std::int64_t> row_major;
  const at::IntArrayRef strides = BucketStrides(parameter, row_major);
  const auto on_memory = [&] {
    return OnMemory(memory, place, parameter.sizes(), strides, parameter.scalar_type());
  };
  const at::Tensor bucket = on_memory();
  const at::Tensor& gradient = parameter.grad();
  const bool moves = slot.bucket.defined() && gradient.defined() && slot.Holds(gradient);
  if (moves) bucket.copy_(slot.bucket);
  slot.bucket = bucket;
  slot.view = on_memory();  // no view to LibTorch, which could not detach it in place
  if (moves) parameter.mutable_grad() = slot.view;
}

/// The unit's memory as one tensor of an operation.
TensorArg UnitArgument(const Unit& unit, std::size_t bytes) {
  const at::Tensor& first = unit.slots.front()->bucket;
  if (!unit.shared()) return Argument({first, *LayoutOf(first)}, first.mutable_data_ptr());
  TensorArg argument;
  argument.input = argument.output = first.mutable_data_ptr();
  argument.dtype = *DTypeOf(first.scalar_type());
  argument.shape = {static_cast<std::int64_t>(bytes / DTypeBytes(argument.dtype))};
  return argument;
}

std::string UnitName(const Unit& unit) {
  const std::string& first = unit.slots.front()->name;
  if (!unit.shared()) return "allreduce." + first;
  return c10::str("shared_allreduce.", first, "+", unit.slots.size() - 1);
}

std::size_t UnitBytes(const Unit& unit) {
  std::size_t bytes = 0;
  for (const Slot* slot : unit.slots) bytes += Padded(slot->bytes);
  return bytes;
}

}  // namespace

Slot::Slot(std::string of_name, at::Tensor of_parameter, std::size_t of_number)
    : name(std::move(of_name)),
      parameter(std::move(of_parameter)),
      number(of_number),
      bytes(parameter.nbytes()),
      placeholder(at::empty_strided(parameter.sizes(), parameter.strides(),
                                    parameter.options().device(at::kMeta).requires_grad(false))) {}

bool Slot::Fits() const {
  return parameter.scalar_type() == bucket.scalar_type() && parameter.sizes() == bucket.sizes() &&
         parameter.is_cpu();
}

bool Slot::Holds(const at::Tensor& gradient) const {
  return gradient.is_same(view) ||
         (gradient.layout() == at::kStrided && gradient.is_cpu() && gradient.numel() > 0 &&
          gradient.const_data_ptr() == bucket.const_data_ptr());
}

void Slot::SaveStale() {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.defined() && Holds(gradient)) stale = bucket.clone();
}

void Slot::Restore() {
  if (stale.defined()) bucket.copy_(stale);
  if (packed) parameter.mutable_grad() = stale.defined() ? view : at::Tensor();
}

std::shared_ptr<const Operation> ReductionOf(const Travel& travel, std::string name,
                                             TensorArg argument,
                                             std::shared_ptr<const void> memory) {
  struct Kept {
    Operation operation;
    std::shared_ptr<const void> memory;
  };
  auto kept = std::make_shared<Kept>();
  kept->memory = std::move(memory);
  Operation& operation = kept->operation;
  operation.kind = OpKind::kAllreduce;
  operation.name = std::move(name);
  operation.reduce_op = travel.op;
  operation.prescale = travel.prescale;
  operation.postscale = travel.postscale;
  operation.process_set = travel.process_set;
  operation.tensors = {std::move(argument)};
  return {kept, &kept->operation};
}

std::shared_ptr<const Operation> ReadingFrom(std::shared_ptr<const Operation> operation,
                                             const at::Tensor& gradient) {
  struct Kept {
    Operation operation;
    std::shared_ptr<const Operation> original;  ///< which has the memory of the result
    at::Tensor gradient;
  };
  auto kept = std::make_shared<Kept>(Kept{*operation, operation, gradient});
  kept->operation.tensors[0].input = gradient.const_data_ptr();
  return {kept, &kept->operation};
}

Status MakeBuckets(Session& session, const Travel& travel, const std::vector<Unit*>& units) {
  std::size_t total = 0;
  for (const Unit* unit : units) total += UnitBytes(*unit);
  HVL_ASSIGN_OR_RETURN(const SharedBuffer block, session.Allocate(total));
  auto* place = static_cast<char*>(block.data);
  for (Unit* unit : units) {
    char* const begin = place;
    for (Slot* slot : unit->slots) {
      SetBucket(*slot, block.owner, slot->bytes == 0 ? nullptr : place);
      slot->unit = unit;
      place += Padded(slot->bytes);
    }
    const auto used = static_cast<std::size_t>(place - begin);
    unit->operation = ReductionOf(travel, travel.prefix + UnitName(*unit),
                                  UnitArgument(*unit, used), block.owner);
  }
  return Status::Ok();
}

std::vector<std::vector<Slot*>> Share(const std::vector<std::unique_ptr<Slot>>& slots,
                                      const std::vector<bool>& sharers) {
  struct Open {
    std::size_t index, bytes;
  };
  std::vector<std::vector<Slot*>> units;
  std::map<at::ScalarType, Open> open;  // the unit of each type that may get more
  for (const std::unique_ptr<Slot>& slot : slots) {
    const std::size_t bytes = Padded(slot->bytes);
    const at::ScalarType type = slot->parameter.scalar_type();
    if (!sharers[slot->number] || bytes == 0 || bytes > kMostShared) {
      units.push_back({slot.get()});
      continue;
    }
    const auto found = open.find(type);
    if (found == open.end() || found->second.bytes + bytes > kMostShared) {
      open[type] = {units.size(), bytes};
      units.push_back({slot.get()});
    } else {
      found->second.bytes += bytes;
      units[found->second.index].push_back(slot.get());
    }
  }
  return units;
}

}  // namespace hvl::torch
