// DistributedOptimizer: any optimizer of LibTorch, whose step() uses gradients that have been
// reduced over all ranks while backward() was still running.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "horovodlite/session.h"
#include "horovodlite/torch/broadcast.h"

namespace hvl::torch {

class Reducer;

struct DistributedOptions {
  /// `model->named_parameters().pairs()`: names for messages and the timeline. They must cover the
  /// optimizer's parameters; others are ignored. Without them parameters are numbered.
  NamedTensors named_parameters = {};
  /// Average or sum.
  ReduceOp op = ReduceOp::kAverage;
  /// Backward passes whose gradients are added up locally, as sums, before they are reduced.
  int backward_passes_per_step = 1;
  /// With Average, gradients are divided by it before they are added up, and multiplied by it
  /// after: against overflow in narrow types.
  double gradient_predivide_factor = 1.0;
  /// Whose ranks share their gradients; other ranks train alone.
  ProcessSetId process_set = kWorldSet;
  /// In front of all names; needed where optimizers of one session have equal names of parameters.
  std::string prefix = {};
};

/// What a DistributedOptimizer can do besides, whatever optimizer is inside. Where only a
/// `torch::optim::Optimizer&` is known: `dynamic_cast<hvl::torch::Distributed&>(optimizer)`.
class Distributed {
 public:
  Distributed(Distributed&&) noexcept;
  Distributed& operator=(Distributed&&) noexcept;
  ~Distributed();

  /// Waits until all gradients are reduced: `parameter.grad()` has the results then. Collective;
  /// blocks. For what reads or changes gradients before step(), as clipping does; step() then takes
  /// them as they are. Throws hvl::Error: the ranks disagree, or a peer is gone.
  void synchronize();

  /// While the object that it returns lives, backward() adds to the gradients of this rank only.
  /// Any number of passes, which do not count as backward_passes_per_step; each parameter's passes
  /// outside come after. Local.
  class LocalPasses {
   public:
    explicit LocalPasses(Reducer& reducer);
    LocalPasses(const LocalPasses&) = delete;
    LocalPasses& operator=(const LocalPasses&) = delete;
    ~LocalPasses();

   private:
    Reducer* reducer_;
    bool before_;
  };
  [[nodiscard]] LocalPasses no_sync();

  /// Changes the number of backward passes from the next step on. Local.
  void set_backward_passes_per_step(int passes);

  /// Says that this rank has no more batches, and waits until all ranks have said so: until then it
  /// takes part in their steps with zeros; an average is still divided by the number of all ranks.
  /// Collective over the world; blocks. Returns the rank that said so last. Where a session has
  /// several of these optimizers, it is called for each, in the same order on all ranks.
  int join();

 protected:
  Distributed(Session& session, const ::torch::optim::Optimizer& optimizer,
              DistributedOptions options);

  void BeforeStep(const ::torch::optim::Optimizer& optimizer);
  /// `closure`, followed by the reduction of what it has computed; the loss reduced too where the
  /// optimizer decides by it.
  ::torch::optim::Optimizer::LossClosure Reducing(::torch::optim::Optimizer::LossClosure closure,
                                                  bool decides_by_loss);
  void BeforeZeroGrad();
  void BeforeAdding();
  void AfterAdding(const ::torch::optim::Optimizer& optimizer);
  void BeforeLoading();

 private:
  std::unique_ptr<Reducer> reducer_;
};

/// An `Inner`, made of one that is moved in, with step() collective:
///
///     hvl::torch::DistributedOptimizer optimizer(*session, torch::optim::SGD(
///         model->parameters(), 0.1), {.named_parameters = model->named_parameters().pairs()});
///     ...
///     optimizer.zero_grad();
///     loss.backward();   // gradients are reduced while this runs
///     optimizer.step();
///
/// It is an `Inner` in all respects: learning rate schedulers, torch::save and torch::load take it,
/// and so does what takes a `torch::optim::Optimizer&`. Any optimizer that can be moved will do.
/// Making it is local; ranks meet in the first backward(). The session must outlive it.
///
/// Gradients become views of memory that peers on this host read directly. They are valid after
/// step() or synchronize(), also after the end of the session. Between backward() and that,
/// `parameter.grad()` is a tensor without data (device meta): what clips, reads or adds to it is
/// stopped by LibTorch, instead of working with numbers that are still to be reduced.
///
/// A parameter with a gradient on some rank is reduced with zeros from ranks where it has none. One
/// that has none on any rank keeps none, so weight decay and momentum leave it alone, as in a
/// single process. Sparse gradients are reduced and delivered as dense ones. Frozen parameters
/// (requires_grad false) stay out; they must be frozen on all ranks alike.
///
/// Another DistributedOptimizer of the same parameters replaces this one.
///
/// Its own calls throw hvl::Error, as do backward() and step():
/// InvalidArgument: names missing or used twice, an option out of range, a parameter that is not in
///   host memory or has changed its form, more backward passes than were announced, zero_grad()
///   while gradients are being reduced.
/// Mismatch: the ranks' parameters differ. Unavailable, Timeout, Aborted: the session is over.
template <typename Inner>
class DistributedOptimizer final : public Inner, public Distributed {
  static_assert(std::is_base_of_v<::torch::optim::Optimizer, Inner>,
                "DistributedOptimizer needs an optimizer of LibTorch");

 public:
  using LossClosure = ::torch::optim::Optimizer::LossClosure;

  DistributedOptimizer(Session& session, Inner&& inner, DistributedOptions options = {})
      : Inner(std::move(inner)),
        Distributed(session, static_cast<const Inner&>(*this), std::move(options)) {}

  /// Waits for the gradients and steps. With a closure, the gradients that it computes are reduced
  /// each time it is called; LBFGS, which decides by the loss how often that is, gets the loss
  /// reduced too, so that all ranks decide alike. Collective; blocks.
  at::Tensor step(LossClosure closure = nullptr) override {
    constexpr bool kDecidesByLoss = std::is_base_of_v<::torch::optim::LBFGS, Inner>;
    if (closure) return Inner::step(Reducing(std::move(closure), kDecidesByLoss));
    BeforeStep(*this);
    return Inner::step(nullptr);
  }

  /// As the optimizer's own. Passes that have been counted are forgotten as well. Local.
  void zero_grad(bool set_to_none = true) {
    BeforeZeroGrad();
    Inner::zero_grad(set_to_none);
  }

  /// As the optimizer's own; the new parameters are reduced too, under numbers. Between two steps;
  /// on all ranks alike. Local.
  void add_param_group(const ::torch::optim::OptimizerParamGroup& group) {
    BeforeAdding();
    Inner::add_param_group(group);
    AfterAdding(*this);
  }

  /// As the optimizer's own; gradients in flight are waited for and forgotten.
  void load(::torch::serialize::InputArchive& archive) override {
    BeforeLoading();
    Inner::load(archive);
  }
};

}  // namespace hvl::torch
