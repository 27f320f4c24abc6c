#include "horovodlite/torch/optimizer.h"

#include <c10/util/StringUtil.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "csrc/torch/reducer.h"
#include "csrc/torch/tensors.h"
#include "horovodlite/error.h"

namespace hvl::torch {
namespace {

using Optimizer = ::torch::optim::Optimizer;

/// Numbers as names, from a group on.
NamedTensors Numbered(const Optimizer& optimizer, std::size_t first_group) {
  NamedTensors named;
  const auto& groups = optimizer.param_groups();
  for (std::size_t group = first_group; group < groups.size(); ++group) {
    const auto& parameters = groups[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      named.emplace_back(c10::str("noname.", group, ".", i), parameters[i]);
    }
  }
  return named;
}

/// Every parameter of the optimizer with its name, in the optimizer's order.
NamedTensors Named(const Optimizer& optimizer, const NamedTensors& names) {
  NamedTensors named = Numbered(optimizer, 0);
  if (names.empty()) return named;
  std::map<const void*, std::string> name_of;
  std::set<std::string> seen;
  for (const auto& [name, parameter] : names) {
    if (!seen.insert(name).second) {
      Refuse(c10::str("parameter names in named_parameters must be unique: '", name,
                      "' is there "
                      "twice"));
    }
    name_of.emplace(parameter.unsafeGetTensorImpl(), name);  // a shared one goes by its first name
  }
  std::string missing;
  for (auto& [name, parameter] : named) {
    const auto found = name_of.find(parameter.unsafeGetTensorImpl());
    if (found == name_of.end()) {
      missing += c10::str(missing.empty() ? "" : "; ", name, " of shape ", SizesText(parameter));
    } else {
      name = found->second;
    }
  }
  if (!missing.empty()) {
    Refuse(c10::str("named_parameters does not name parameters of the optimizer: ", missing));
  }
  return named;
}

int Positive(int passes) {
  if (passes < 1) Refuse(c10::str("backward_passes_per_step must be at least 1, not ", passes));
  return passes;
}

Travel TravelOf(const DistributedOptions& options) {
  const double factor = options.gradient_predivide_factor;
  if (options.op != ReduceOp::kAverage && options.op != ReduceOp::kSum) {
    Refuse(c10::str("DistributedOptimizer reduces by average or sum, not by ",
                    ReduceOpName(options.op)));
  }
  if (!(factor > 0.0) || !std::isfinite(factor)) {
    Refuse(c10::str("gradient_predivide_factor must be > 0 and finite, not ", factor));
  }
  if (factor != 1.0 && options.op != ReduceOp::kAverage) {
    Refuse("gradient_predivide_factor is for averages");
  }
  return {options.op, 1.0 / factor, factor, options.process_set, options.prefix};
}

}  // namespace

Distributed::Distributed(Session& session, const Optimizer& optimizer, DistributedOptions options)
    : reducer_(std::make_unique<Reducer>(session, Named(optimizer, options.named_parameters),
                                         TravelOf(options),
                                         Positive(options.backward_passes_per_step))) {}

Distributed::Distributed(Distributed&&) noexcept = default;
Distributed& Distributed::operator=(Distributed&&) noexcept = default;
Distributed::~Distributed() = default;

void Distributed::synchronize() { reducer_->Synchronize(); }

Distributed::LocalPasses::LocalPasses(Reducer& reducer)
    : reducer_(&reducer), before_(reducer.keeps_local) {
  reducer.keeps_local = true;
}
Distributed::LocalPasses::~LocalPasses() { reducer_->keeps_local = before_; }
Distributed::LocalPasses Distributed::no_sync() { return LocalPasses(*reducer_); }

void Distributed::set_backward_passes_per_step(int passes) {
  reducer_->passes_per_step = Positive(passes);
}

int Distributed::join() { return reducer_->Join(); }

void Distributed::BeforeStep(const Optimizer& optimizer) {
  std::size_t parameters = 0;
  for (const auto& group : optimizer.param_groups()) parameters += group.params().size();
  if (parameters != reducer_->parameter_count()) {
    Refuse(c10::str("the optimizer has ", parameters, " parameters, and gradients of ",
                    reducer_->parameter_count(),
                    " are reduced: add parameters by "
                    "add_param_group() of the DistributedOptimizer itself"));
  }
  if (!reducer_->synchronized()) reducer_->Synchronize();
  reducer_->Stepped();
}

Optimizer::LossClosure Distributed::Reducing(Optimizer::LossClosure closure, bool decides_by_loss) {
  if (reducer_->in_flight()) reducer_->Synchronize();  // from before: the closure zeroes them
  return [this, closure = std::move(closure), decides_by_loss] {
    at::Tensor loss = closure();
    if (!reducer_->synchronized()) reducer_->Synchronize();
    reducer_->Stepped();
    return decides_by_loss ? reducer_->ReduceLoss(loss) : loss;
  };
}

void Distributed::BeforeZeroGrad() { reducer_->Discard(); }

void Distributed::BeforeAdding() { reducer_->RequireIdle(); }

void Distributed::AfterAdding(const Optimizer& optimizer) {
  reducer_->Add(Numbered(optimizer, optimizer.param_groups().size() - 1));
}

void Distributed::BeforeLoading() { reducer_->Drain(); }

}  // namespace hvl::torch
