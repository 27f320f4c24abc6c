// Gradients and the memory in which they are reduced.
//
// A *slot* is one parameter's gradient; its *bucket* is the memory in which it is reduced,
// allocated by the runtime so that peers on this host reach it directly. A *unit* is what is
// submitted as one operation: one slot, or several small ones (docs/decisions/0021).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "horovodlite/session.h"
#include "horovodlite/types.h"

namespace hvl::torch {

struct Unit;

struct Slot {
  Slot(std::string of_name, at::Tensor of_parameter, std::size_t of_number);

  const std::string name;
  const at::Tensor parameter;
  const std::size_t number;
  const std::size_t bytes;
  /// What the parameter has for a gradient while that is being reduced: its form without data, so
  /// that LibTorch stops whoever would work with it.
  const at::Tensor placeholder;
  at::Tensor bucket;  ///< of the parameter's shape, and strides if these leave no holes
  at::Tensor view;    ///< the bucket as the parameter's gradient
  Unit* unit = nullptr;

  // What begins anew with each step.
  int passes = 0;       ///< backward passes that have reached it, but for local ones
  bool used = false;    ///< whether any has
  bool packed = false;  ///< whether the gradient is where its unit takes it from
  at::Tensor stale;     ///< what an unused gradient was, if it was in the bucket

  /// Whether the parameter still has the form that the bucket was made for.
  bool Fits() const;
  /// Whether a gradient lies in the bucket.
  bool Holds(const at::Tensor& gradient) const;
  /// Before a gradient that was not used takes part: keeps what Restore() brings back.
  void SaveStale();
  /// After nobody has used the parameter: leaves the gradient as it was.
  void Restore();
};

struct Unit {
  std::vector<Slot*> slots;  ///< in the order in which gradients become ready
  std::shared_ptr<const Operation> operation;
  std::size_t unpacked = 0;  ///< slots that are not packed yet in this step
  hvl::Handle handle;        ///< of this step's operation, if it has been started

  bool shared() const { return slots.size() > 1; }
};

/// How gradients travel.
struct Travel {
  ReduceOp op = ReduceOp::kAverage;
  double prescale = 1.0, postscale = 1.0;
  ProcessSetId process_set = kWorldSet;
  std::string prefix;  ///< of all names
};

/// Gives the units' slots their buckets, in one block of memory, and the units their operations.
/// What the gradients are moves along where it lies in an earlier bucket.
Status MakeBuckets(Session& session, const Travel& travel, const std::vector<Unit*>& units);

/// An operation on fixed memory, which it keeps.
std::shared_ptr<const Operation> ReductionOf(const Travel& travel, std::string name,
                                             TensorArg argument,
                                             std::shared_ptr<const void> memory);
/// The same that reads its input elsewhere, in a gradient that it keeps.
std::shared_ptr<const Operation> ReadingFrom(std::shared_ptr<const Operation> operation,
                                             const at::Tensor& gradient);

/// The most bytes of a shared unit. Small gradients are submitted without waking anybody until as
/// much has gathered, so none starts later for sharing.
inline constexpr std::size_t kMostShared = std::size_t{256} << 10;

/// Which slots travel together, in the order of the first of each. `sharers`: by number, which of
/// them may, the same on all ranks.
std::vector<std::vector<Slot*>> Share(const std::vector<std::unique_ptr<Slot>>& slots,
                                      const std::vector<bool>& sharers);

}  // namespace hvl::torch
