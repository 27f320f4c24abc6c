// Reduces the gradients of an optimizer's parameters while backward() is still running.
//
// One step. Each backward pass accumulates into the parameter's gradient and then calls the slot's
// hook. With the last pass of a step the gradient is *packed*: copied into its bucket, if it is not
// there already (a large one that nobody else refers to is not copied: the operation reads it where
// it is). When all slots of a unit are packed, the unit starts. Synchronize() packs what backward
// did not reach, waits, and leaves the reduced gradients in the parameters.
//
// A parameter that this rank has not used takes part with zeros, or with the gradient left from an
// earlier step, since other ranks may have used it. Whether anybody has is learnt from one more
// small tensor, with a flag per slot, which is fused with the last gradients
// (docs/decisions/0015). The flags also say which small gradients may share an operation from the
// second step on (0021). The same in Python: horovodlite/torch/_gradients.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/torch/units.h"
#include "horovodlite/session.h"
#include "horovodlite/torch/broadcast.h"

namespace hvl::torch {

/// One per DistributedOptimizer. Throws hvl::Error. Hooks may be called by any thread; everything
/// else, by one thread while no backward() runs.
class Reducer {
 public:
  /// `parameters`: the same names in the same order on every rank. Local.
  Reducer(Session& session, const NamedTensors& parameters, Travel travel, int passes_per_step);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  /// Takes the hooks off. What is in flight goes on, in memory that the runtime keeps.
  ~Reducer();

  /// Parameters that join later, between two steps.
  void Add(const NamedTensors& parameters);
  std::size_t parameter_count() const { return slots_.size(); }

  /// Backward has added to a gradient.
  void Accumulated(Slot& slot);
  /// Leaves reduced gradients in all parameters and begins a new step. Collective; blocks.
  void Synchronize();
  /// Since the last step, and no gradient has arrived since.
  bool synchronized() const { return synchronized_; }
  void Stepped() { synchronized_ = false; }
  bool in_flight() const { return started_ > 0; }

  /// The accumulated gradients are being thrown away.
  void Discard();
  /// Waits for what is in flight, throws the results away and begins a new step.
  void Drain();
  /// InvalidArgument when gradients are being reduced, or another optimizer has the parameters.
  void RequireIdle() const;
  int Join();
  /// The loss as the ranks see it together; itself where there is nobody to reduce with.
  at::Tensor ReduceLoss(const at::Tensor& loss);

  bool keeps_local = false;  ///< backward adds to this rank's gradients only
  int passes_per_step;

 private:
  class Hook;

  /// InvalidArgument for parameters that cannot be reduced, or are here already.
  void Check(const NamedTensors& parameters) const;
  void HookOn(Slot& slot);
  void RequireCurrent() const;

  // Memory.
  void Meet();
  void MakeFlags();
  void ShareAnew();
  void Learn();

  // One step.
  void BeginStep();
  void Ready(Slot& slot);
  std::shared_ptr<const Operation> Pack(Slot& slot);
  void StartUnit(Unit& unit, std::shared_ptr<const Operation> operation, bool wake);
  void StartWithoutTheRest(Unit& unit);
  void SendRest();
  void SendFlags();
  void TakePartLate();
  void RequireAlike() const;
  void Deliver();
  void Finish();
  Status WaitForAll();
  /// How many ranks have set the flag.
  int Count(std::size_t flag) const;
  std::vector<Slot*> FrozenSomewhere() const;
  bool IsOut(const Slot& slot) const;

  Session* const session_;
  const Travel travel_;
  std::mutex mutex_;  ///< held by hooks, which may run on several threads
  bool replaced_ = false;
  bool synchronized_ = false;
  bool has_met_ = false;  ///< buckets are there; or nobody to share them with:
  bool is_alone_ = false;
  int ranks_ = 1;

  std::vector<std::unique_ptr<Slot>> slots_;  ///< in the order in which gradients become ready
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<bool> sharers_;  ///< by number of the slot; empty: none
  bool has_learnt_ = false;    ///< a step has shown the sharers
  bool shares_anew_ = false;   ///< from the next step on

  /// First one per slot that says whether it is used, then one per slot that says whether it is
  /// left out, because it is frozen, then one that says whether any is.
  float* flags_ = nullptr;
  std::shared_ptr<const Operation> flags_operation_;  ///< keeps them
  hvl::Handle flags_handle_;

  // What begins anew with each step.
  std::size_t unpacked_ = 0;     ///< slots
  std::size_t started_ = 0;      ///< units
  std::size_t quiet_bytes_ = 0;  ///< packed since a thread was last woken
};

}  // namespace hvl::torch
