// Making all ranks start alike: parameters, buffers and the state of an optimizer.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

#include "horovodlite/session.h"

namespace hvl::torch {

/// Tensors with names, as `model->named_parameters().pairs()` gives them.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Overwrites the tensors with those of the rank `root`. Collective; blocks. The ranks compare
/// names, dtypes and shapes before anything is changed. Undefined tensors are skipped. Throws
/// hvl::Error: Mismatch (names the first tensor that differs), or what broadcast throws.
void broadcast_parameters(Session& session, const NamedTensors& tensors, int root = 0,
                          ProcessSetId process_set = kWorldSet);
/// All parameters and buffers of a module.
void broadcast_parameters(Session& session, const ::torch::nn::Module& module, int root = 0,
                          ProcessSetId process_set = kWorldSet);

/// Gives the optimizer the state and the options (lr, betas, ...) of the one on the rank `root`, as
/// torch::save and torch::load carry them. Collective; blocks. Throws hvl::Error, and c10::Error
/// where that state does not fit this optimizer.
void broadcast_optimizer_state(Session& session, ::torch::optim::Optimizer& optimizer, int root = 0,
                               ProcessSetId process_set = kWorldSet);

}  // namespace hvl::torch
