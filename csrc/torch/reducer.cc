#include "csrc/torch/reducer.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "csrc/torch/tensors.h"
#include "horovodlite/error.h"
#include "horovodlite/torch/operations.h"

namespace hvl::torch {
namespace {

// Small gradients are submitted without waking the thread that negotiates, until so much has
// gathered that reducing it takes longer than the waking (docs/decisions/0016).
constexpr std::size_t kWakeBytes = kMostShared;
// Larger ones stay where they are if nobody else can get at them: the reduction reads them there
// (docs/decisions/0025). Smaller ones are copied while they are in the cache.
constexpr std::size_t kMostCopied = std::size_t{1} << 20;

/// Whether elements have the same places in both.
bool SameForm(const at::Tensor& a, const at::Tensor& b) {
  return a.layout() == at::kStrided && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_cpu() && !a.is_neg() &&
         !a.is_conj();
}

/// Whether nothing but its parameter refers to a gradient or to its memory.
bool HasSoleOwner(const at::Tensor& gradient) {
  return gradient.use_count() == 1 && gradient.storage().use_count() == 1;
}

void CheckParameter(const std::string& name, const at::Tensor& parameter) {
  const auto refuse = [&name](const std::string& what) {
    Refuse(c10::str("parameter '", name, "' ", what));
  };
  if (!parameter.defined()) refuse("is undefined");
  if (!parameter.is_cpu())
    refuse(c10::str("is on ", parameter.device(),
                    ": only host memory is "
                    "supported"));
  if (parameter.layout() != at::kStrided) refuse("is sparse");
  if (!DTypeOf(parameter.scalar_type())) {
    refuse(c10::str("is of type ", parameter.scalar_type(), ", which cannot be reduced"));
  }
}

}  // namespace

// --- Hooks ---------------------------------------------------------------------------------------

class Reducer::Hook final : public ::torch::autograd::PostAccumulateGradHook {
 public:
  Hook(Reducer& reducer, Slot& slot) : reducer_(&reducer), slot_(&slot) {}
  void operator()(const at::Tensor& /*parameter*/) override { reducer_->Accumulated(*slot_); }
  Reducer* reducer() const { return reducer_; }

 private:
  Reducer* reducer_;  ///< which takes the hook off before it goes
  Slot* slot_;
};

void Reducer::HookOn(Slot& slot) {
  using ::torch::autograd::impl::post_acc_grad_hooks;
  if (auto* const earlier = dynamic_cast<Hook*>(post_acc_grad_hooks(slot.parameter).get())) {
    earlier->reducer()->Drain();
    earlier->reducer()->replaced_ = true;
  }
  ::torch::autograd::impl::set_post_acc_grad_hooks(slot.parameter,
                                                   std::make_unique<Hook>(*this, slot));
}

void Reducer::Check(const NamedTensors& parameters) const {
  std::set<const void*> seen;
  for (const std::unique_ptr<Slot>& slot : slots_) {
    seen.insert(slot->parameter.unsafeGetTensorImpl());
  }
  for (const auto& [name, parameter] : parameters) {
    CheckParameter(name, parameter);
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
      Refuse(c10::str("parameter '", name, "' is in the optimizer twice"));
    }
    const auto& hook = ::torch::autograd::impl::post_acc_grad_hooks(parameter);
    if (hook != nullptr && dynamic_cast<const Hook*>(hook.get()) == nullptr) {
      Refuse(c10::str("parameter '", name,
                      "' has a hook of somebody else that is called when its gradient has come: "
                      "LibTorch has room for one"));
    }
  }
}

Reducer::Reducer(Session& session, const NamedTensors& parameters, Travel travel, int passes)
    : passes_per_step(passes), session_(&session), travel_(std::move(travel)) {
  Add(parameters);
}

Reducer::~Reducer() {
  using ::torch::autograd::impl::post_acc_grad_hooks;
  for (const std::unique_ptr<Slot>& slot : slots_) {
    auto* const hook = dynamic_cast<Hook*>(post_acc_grad_hooks(slot->parameter).get());
    if (hook == nullptr || hook->reducer() != this) continue;
    ::torch::autograd::impl::set_post_acc_grad_hooks(slot->parameter, nullptr);
    if (slot->packed) slot->parameter.mutable_grad() = at::Tensor();
  }
}

void Reducer::Add(const NamedTensors& parameters) {
  Check(parameters);  // what comes after it throws nothing that leaves hooks behind
  // Gradients become ready roughly from the last parameter on.
  for (auto entry = parameters.rbegin(); entry != parameters.rend(); ++entry) {
    slots_.push_back(std::make_unique<Slot>(entry->first, entry->second, slots_.size()));
    HookOn(*slots_.back());
  }
  has_met_ = false;
}

void Reducer::RequireCurrent() const {
  if (replaced_) {
    Refuse(
        "the parameters of this DistributedOptimizer have been handed to a newer one: use that, "
        "or give the two different parameters");
  }
}

void Reducer::RequireIdle() const {
  RequireCurrent();
  if (in_flight()) Refuse("parameters cannot be added between backward() and step()");
}

// --- Memory --------------------------------------------------------------------------------------

/// The first time, and when the ranks are to agree anew: every slot travels alone.
void Reducer::Meet() {
  if (has_met_) return;
  const std::vector<int> ranks = ValueOrThrow(session_->ProcessSetRanks(travel_.process_set));
  ranks_ = static_cast<int>(ranks.size());
  is_alone_ =
      ranks_ == 1 || !std::binary_search(ranks.begin(), ranks.end(), session_->world().rank);
  sharers_.clear();
  has_learnt_ = shares_anew_ = false;
  if (!is_alone_) {
    units_.clear();
    std::vector<Unit*> small, large;  // memory of their own: small ones may move soon
    for (const std::unique_ptr<Slot>& slot : slots_) {
      units_.push_back(std::make_unique<Unit>());
      units_.back()->slots = {slot.get()};
      (slot->bytes > kMostShared ? large : small).push_back(units_.back().get());
    }
    ThrowIfError(MakeBuckets(*session_, travel_, small));
    ThrowIfError(MakeBuckets(*session_, travel_, large));
    MakeFlags();
    BeginStep();
  }
  has_met_ = true;
}

/// They are reduced like gradients, so that they are fused with them.
void Reducer::MakeFlags() {
  const std::size_t count = 2 * slots_.size() + 1;
  const SharedBuffer block = ValueOrThrow(session_->Allocate(count * sizeof(float)));
  flags_ = static_cast<float*>(block.data);
  TensorArg argument;
  argument.input = argument.output = block.data;
  argument.shape = {static_cast<std::int64_t>(count)};
  const std::string last = slots_.empty() ? "nothing" : slots_.back()->name;
  flags_operation_ = ReductionOf(travel_, c10::str(travel_.prefix, "allreduce.", last, ".used"),
                                 std::move(argument), block.owner);
}

/// Small slots share units as has been agreed. Between two steps.
void Reducer::ShareAnew() {
  std::vector<std::unique_ptr<Unit>> units;
  std::vector<Unit*> fresh;
  for (std::vector<Slot*>& together : Share(slots_, sharers_)) {
    Unit* const before = together.front()->unit;
    const auto same = std::find_if(units_.begin(), units_.end(), [&](const auto& unit) {
      return unit.get() == before && unit->slots == together;
    });
    if (same != units_.end()) {
      units.push_back(std::move(*same));
      units_.erase(same);
    } else {
      units.push_back(std::make_unique<Unit>());
      units.back()->slots = std::move(together);
      fresh.push_back(units.back().get());
    }
  }
  ThrowIfError(MakeBuckets(*session_, travel_, fresh));
  units_ = std::move(units);
  shares_anew_ = false;
}

/// After a step in which everything has succeeded, on all ranks: who shares from now on.
void Reducer::Learn() {
  std::vector<bool> sharers(slots_.size());
  for (const std::unique_ptr<Slot>& slot : slots_) {
    const bool before = !has_learnt_ || sharers_[slot->number];
    sharers[slot->number] = before && Count(slot->number) == ranks_;
  }
  shares_anew_ |= sharers != sharers_;
  sharers_ = std::move(sharers);
  has_learnt_ = true;
}

// --- One step ------------------------------------------------------------------------------------

void Reducer::BeginStep() {
  started_ = quiet_bytes_ = 0;
  flags_handle_ = {};
  for (const std::unique_ptr<Slot>& slot : slots_) {
    slot->used = slot->packed = false;
    slot->passes = 0;
    slot->stale = at::Tensor();
  }
  if (shares_anew_ && has_met_) ShareAnew();
  for (const std::unique_ptr<Unit>& unit : units_) {
    unit->unpacked = unit->slots.size();
    unit->handle = {};
  }
  unpacked_ = slots_.size();
}

void Reducer::Accumulated(Slot& slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  RequireCurrent();
  Meet();
  if (slot.packed || slot.passes >= passes_per_step) {
    Refuse(c10::str("the gradient of '", slot.name, "' was computed ", slot.passes + 1,
                    " times since the last step(), but backward_passes_per_step is ",
                    passes_per_step,
                    ". Raise it to accumulate gradients locally, or call step() "
                    "before the next backward(). Passes under no_sync() have to come first."));
  }
  slot.used = true;
  synchronized_ = false;
  if (keeps_local) return;
  ++slot.passes;
  if (slot.passes == passes_per_step && !is_alone_) Ready(slot);
}

/// Nothing more will be added to this gradient in this step.
void Reducer::Ready(Slot& slot) {
  Unit& unit = *slot.unit;
  std::shared_ptr<const Operation> operation = Pack(slot);
  quiet_bytes_ += slot.bytes;
  if (--unit.unpacked == 0) StartUnit(unit, std::move(operation), quiet_bytes_ >= kWakeBytes);
  if (--unpacked_ == 0) SendFlags();
}

/// Brings the gradient to where it is reduced, zeros if there is none, and returns the operation
/// that takes it there.
std::shared_ptr<const Operation> Reducer::Pack(Slot& slot) {
  if (!slot.Fits()) {
    Refuse(c10::str("parameter '", slot.name, "' is of type ", slot.parameter.scalar_type(),
                    " and shape ", SizesText(slot.parameter), " now, and was ",
                    slot.bucket.scalar_type(), " ", SizesText(slot.bucket),
                    " when gradients were first reduced: make a new DistributedOptimizer"));
  }
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = slot.parameter.mutable_grad();
  std::shared_ptr<const Operation> operation = slot.unit->operation;
  slot.packed = true;
  if (!gradient.defined()) {
    slot.bucket.zero_();
  } else if (!slot.Holds(gradient)) {
    if (!SameForm(gradient, slot.bucket)) {
      slot.bucket.copy_(gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
    } else if (slot.bytes > kMostCopied && !slot.unit->shared() && HasSoleOwner(gradient)) {
      operation = ReadingFrom(std::move(operation), gradient);
    } else if (slot.bytes > 0) {
      std::memcpy(slot.bucket.mutable_data_ptr(), gradient.const_data_ptr(), slot.bytes);
    }
  }
  gradient = slot.placeholder;
  return operation;
}

void Reducer::StartUnit(Unit& unit, std::shared_ptr<const Operation> operation, bool wake) {
  unit.handle = ValueOrThrow(session_->Submit(std::move(operation), /*caller_waits=*/!wake));
  ++started_;
  if (wake) quiet_bytes_ = 0;
}

/// With zeros for slots that are not packed. Their gradients are as before after Restore().
void Reducer::StartWithoutTheRest(Unit& unit) {
  for (Slot* slot : unit.slots) {
    if (slot->packed) continue;
    slot->SaveStale();
    slot->bucket.zero_();
  }
  StartUnit(unit, unit.operation, false);
}

void Reducer::SendFlags() {
  if (flags_handle_.valid()) return;
  const std::size_t count = slots_.size();
  bool all = true;
  for (const std::unique_ptr<Slot>& slot : slots_) {
    flags_[slot->number] = slot->used ? 1.0F : 0.0F;
    flags_[count + slot->number] = slot->packed ? 0.0F : 1.0F;
    all = all && slot->packed;
  }
  flags_[2 * count] = all ? 0.0F : 1.0F;
  flags_handle_ = ValueOrThrow(session_->Submit(flags_operation_));
}

int Reducer::Count(std::size_t flag) const {
  const float scale = travel_.op == ReduceOp::kAverage ? static_cast<float>(ranks_) : 1.0F;
  return static_cast<int>(std::lround(flags_[flag] * scale));
}

/// A frozen parameter takes no part, but in a unit that it shares.
bool Reducer::IsOut(const Slot& slot) const {
  return !slot.parameter.requires_grad() && !slot.used;
}

/// Packs what backward has not brought to the number of passes.
void Reducer::SendRest() {
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot->packed || IsOut(*slot)) continue;
    const at::Tensor& gradient = slot->parameter.grad();
    if (!slot->used && gradient.defined() && !slot->Holds(gradient)) {
      slot->used = true;  // nobody told: it was not backward that put it there
    } else if (!slot->used) {
      slot->SaveStale();
    }
    Ready(*slot);
  }
  for (const std::unique_ptr<Unit>& unit : units_) {
    if (unit->shared() && unit->unpacked > 0 && unit->unpacked < unit->slots.size()) {
      StartWithoutTheRest(*unit);
    }
  }
}

std::vector<Slot*> Reducer::FrozenSomewhere() const {
  std::vector<Slot*> frozen;
  for (const std::unique_ptr<Slot>& slot : slots_) {
    const int count = Count(slots_.size() + slot->number);
    if (count > 0 && count < ranks_) frozen.push_back(slot.get());
  }
  return frozen;
}

/// Sends what is frozen here and not on some other rank, which would wait for it for ever. What
/// comes back is of no use: RequireAlike() throws then, on all ranks.
void Reducer::TakePartLate() {
  if (unpacked_ == 0 || !flags_handle_.Wait().ok()) return;
  for (Slot* slot : FrozenSomewhere()) {
    Unit& unit = *slot->unit;
    if (unit.handle.valid()) continue;
    StartWithoutTheRest(unit);
  }
}

void Reducer::RequireAlike() const {
  if (Count(2 * slots_.size()) == 0) return;
  std::string names;
  for (const Slot* slot : FrozenSomewhere()) {
    names += c10::str(names.empty() ? "'" : ", '", slot->name, "'");
  }
  if (names.empty()) return;
  throw Error({StatusCode::kMismatch,
               c10::str("Parameters are frozen on some ranks and not on others: ", names,
                        ". Cure: set requires_grad alike on all ranks.")});
}

/// Waits for everything in flight, after a failure too; the first one.
Status Reducer::WaitForAll() {
  Status first;
  const auto wait = [&first](hvl::Handle& handle) {
    if (!handle.valid()) return;
    if (Status status = handle.Wait(); first.ok()) first = std::move(status);
  };
  for (const std::unique_ptr<Unit>& unit : units_) wait(unit->handle);
  wait(flags_handle_);
  return first;
}

void Reducer::Deliver() {
  for (const std::unique_ptr<Unit>& unit : units_) {
    if (!unit->handle.valid()) continue;
    for (Slot* slot : unit->slots) {
      const bool used = slot->used || Count(slot->number) > 0;  // by any rank
      if (used) {
        slot->parameter.mutable_grad() = slot->view;
      } else {
        slot->Restore();
      }
    }
  }
}

void Reducer::Finish() {
  const at::NoGradGuard no_grad;
  if (unpacked_ > 0) SendRest();
  SendFlags();
  TakePartLate();
  ThrowIfError(WaitForAll());
  RequireAlike();
  Deliver();
  Learn();
}

void Reducer::Synchronize() {
  RequireCurrent();
  Meet();
  if (is_alone_ || slots_.empty()) {
    BeginStep();
  } else {
    try {
      Finish();
    } catch (...) {
      Drain();
      throw;
    }
    BeginStep();
  }
  synchronized_ = true;
}

void Reducer::Drain() {
  (void)WaitForAll();  // nobody wants the results any more
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (!slot->used) {
      slot->Restore();
    } else if (slot->packed) {
      slot->parameter.mutable_grad() = at::Tensor();
    }
  }
  BeginStep();
}

void Reducer::Discard() {
  RequireCurrent();
  if (in_flight() && session_->health().ok()) {
    Refuse(
        "zero_grad() was called after backward() but before step() or synchronize(), while "
        "gradients are being reduced");
  }
  Drain();
  synchronized_ = false;
}

int Reducer::Join() {
  RequireIdle();
  Operation operation;
  operation.kind = OpKind::kJoin;
  std::vector<GatheredTensor> gathered;
  ThrowIfError(session_->Run(std::move(operation), &gathered));
  has_met_ = false;  // each rank may have done another number of steps: they agree anew
  return static_cast<int>(gathered.at(0).first_dims.at(0));
}

at::Tensor Reducer::ReduceLoss(const at::Tensor& loss) {
  if (is_alone_ || !loss.defined()) return loss;
  return allreduce(
      *session_, loss.detach(),
      {.name = c10::str(travel_.prefix, slots_.empty() ? "" : slots_.back()->name, ".loss"),
       .op = travel_.op,
       .process_set = travel_.process_set});
}

}  // namespace hvl::torch
