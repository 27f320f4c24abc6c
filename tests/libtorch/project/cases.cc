// Every argument names a case, which runs in a session of its own, on every rank:
//   hvlrun -np 2 ./cases equal_sgd operations
// "ok <case>" is printed after each; the first that fails ends the program with status 1.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>

#include "harness.h"

namespace cases {
namespace {

using hvl::ReduceOp;
using hvl::Session;
using hvl::StatusCode;

// --- Training equals training in one process -----------------------------------------------------

constexpr double kTolerance = 1e-10;
constexpr int kSteps = 6;

/// `make` makes an optimizer of a model's parameters. The same training with all data in this
/// process, and with this rank's part of it.
template <typename Make>
void Equal(Make make) {
  const auto session = Join();
  const std::int64_t rows = 4 * session->world().size;
  auto whole = Model(), part = Model();
  auto alone = make(whole->parameters());
  hvt::DistributedOptimizer together(*session, make(part->parameters()),
                                     {.named_parameters = Names(part)});
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = BatchOf(step, rows), mine = PartOf(batch, *session);
    const auto closure = [](auto& optimizer, auto& model, const Batch& data) {
      return [&] {
        optimizer.zero_grad();
        at::Tensor loss = Loss(model, data);
        loss.backward();
        return loss;
      };
    };
    alone.step(closure(alone, whole, batch));
    together.step(closure(together, part, mine));
  }
  EXPECT(Difference(*whole, *Model()) > 1e-3);  // it has learnt something
  EXPECT(Difference(*whole, *part) < kTolerance);
  EXPECT_ALIKE(*session, *part);
}

template <typename Optimizer, typename Options>
auto Maker(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return Optimizer(std::move(parameters), options);
  };
}

void EqualSgd() {
  Equal(Maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01)));
}
void EqualAdam() {
  Equal(Maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true)));
}
void EqualAdamW() { Equal(Maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01))); }
void EqualRmsprop() {
  Equal(Maker<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.5)));
}
void EqualAdagrad() { Equal(Maker<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1))); }
/// Decides by the loss how often it evaluates: the ranks have to decide alike.
void EqualLbfgs() {
  Equal(Maker<torch::optim::LBFGS>(
      torch::optim::LBFGSOptions(0.5).max_iter(4).line_search_fn("strong_wolfe")));
}

/// Trains `part` by `each_step(step, batch of this rank)`, and `whole` in one process.
template <typename EachStep>
void EqualSteps(Session& session, torch::nn::Sequential& whole, torch::nn::Sequential& part,
                EachStep each_step) {
  torch::optim::SGD alone(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = BatchOf(step, 12 * session.world().size);
    alone.zero_grad();
    Loss(whole, batch).backward();
    alone.step();
    each_step(PartOf(batch, session));
  }
  EXPECT(Difference(*whole, *part) < kTolerance);
}

torch::optim::SGD Sgd(const torch::nn::Sequential& model) {
  return torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// Passes whose gradients are sums of thirds of the batch.
void Backwards(torch::nn::Sequential& model, const Batch& mine, int from, int to) {
  for (int i = from; i < to; ++i) {
    (Loss(model, {mine.x.chunk(3)[i], mine.y.chunk(3)[i]}) / 3).backward();
  }
}

void Accumulation() {
  const auto session = Join();
  auto whole = Model(), part = Model();
  hvt::DistributedOptimizer optimizer(
      *session, Sgd(part), {.named_parameters = Names(part), .backward_passes_per_step = 3});
  EqualSteps(*session, whole, part, [&](const Batch& mine) {
    optimizer.zero_grad();
    Backwards(part, mine, 0, 3);
    optimizer.step();
  });
}

void NoSync() {
  const auto session = Join();
  auto whole = Model(), part = Model();
  hvt::DistributedOptimizer optimizer(*session, Sgd(part), {.named_parameters = Names(part)});
  EqualSteps(*session, whole, part, [&](const Batch& mine) {
    optimizer.zero_grad();
    {
      const auto local = optimizer.no_sync();
      Backwards(part, mine, 0, 2);
    }
    Backwards(part, mine, 2, 3);
    optimizer.step();
  });
}

void TooManyPasses() {
  const auto session = Join();
  auto model = Model();
  hvt::DistributedOptimizer optimizer(*session, Sgd(model), {.named_parameters = Names(model)});
  const Batch mine = PartOf(BatchOf(0, 4 * session->world().size), *session);
  Loss(model, mine).backward();
  bool stopped = false;
  try {
    Loss(model, mine).backward();
  } catch (const std::exception& error) {
    stopped = true;
    EXPECT_CONTAINS(std::string(error.what()), "meta");
    if (session->world().rank == 0) std::printf("message: %.300s\n", error.what());
  }
  EXPECT(stopped);
  optimizer.step();  // the first pass is still good
  EXPECT_ALIKE(*session, *model);
  // Where gradients are not in flight yet, the count is what stops it.
  optimizer.zero_grad();
  optimizer.set_backward_passes_per_step(2);
  Loss(model, mine).backward();
  optimizer.set_backward_passes_per_step(1);
  const std::string message = ERROR_OF(kInvalidArgument, Loss(model, mine).backward());
  EXPECT_CONTAINS(message,
                  "was computed 2 times since the last step(), but "
                  "backward_passes_per_step is 1");
}

// --- Which parameters ----------------------------------------------------------------------------

/// Three parameters, of which a pass uses the first two, or the first and the third, or the first.
struct Branches : torch::nn::Module {
  Branches() {
    torch::manual_seed(3);
    for (const char* name : {"a", "b", "c"}) {
      weights.push_back(register_parameter(name, torch::randn({4}, kDouble)));
    }
  }
  at::Tensor forward(int branch) {
    at::Tensor sum = weights[0].sum();
    return branch == 0 ? sum : sum + (weights[branch] * weights[branch]).sum();
  }
  std::vector<at::Tensor> weights;
};

void UnusedParameters() {
  const auto session = Join();
  const int size = session->world().size, rank = session->world().rank;
  auto whole = std::make_shared<Branches>(), part = std::make_shared<Branches>();
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1);
  torch::optim::SGD alone(whole->parameters(), options);
  hvt::DistributedOptimizer together(*session, torch::optim::SGD(part->parameters(), options),
                                     {.named_parameters = Names(part)});
  // By step, what rank 0 uses, and what the others use. "b" is used by nobody in steps 3 and 4.
  const std::vector<std::pair<int, int>> branches = {{1, 1}, {1, 1}, {1, 2}, {2, 2},
                                                     {0, 2}, {0, 1}, {1, 1}};
  for (const auto& [first, others] : branches) {
    alone.zero_grad();
    ((whole->forward(first) + (size - 1) * whole->forward(others)) / size).backward();
    alone.step();
    together.zero_grad();
    part->forward(rank == 0 ? first : others).backward();
    together.step();
  }
  EXPECT(Difference(*whole, *part) < kTolerance);
}

void FrozenParameters() {
  const auto session = Join();
  const int rank = session->world().rank;
  auto model = std::make_shared<Branches>();
  const at::Tensor before = model->weights[2].detach().clone();
  model->weights[2].requires_grad_(false);
  hvt::DistributedOptimizer optimizer(*session, torch::optim::SGD(model->parameters(), 0.1),
                                      {.named_parameters = Names(model)});
  const auto step = [&](int branch) {
    optimizer.zero_grad();
    model->forward(branch).backward();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) step(1);
  EXPECT_EQUAL(model->weights[2].detach(), before);
  model->weights[2].requires_grad_(true);  // fine-tuning: it trains from now on
  for (int i = 0; i < 3; ++i) step(2);
  EXPECT(!model->weights[2].equal(before));
  EXPECT_ALIKE(*session, *model);
  model->weights[1].requires_grad_(rank != 0);
  const std::string message = ERROR_OF(kMismatch, step(1));
  EXPECT_CONTAINS(message, "Parameters are frozen on some ranks and not on others: 'b'");
  model->weights[1].requires_grad_(true);
  step(1);  // and it goes on
  EXPECT_ALIKE(*session, *model);
}

void SparseGradients() {
  const auto session = Join();
  torch::manual_seed(5);
  const auto options = torch::nn::EmbeddingOptions(10, 3).sparse(true);
  torch::nn::Embedding whole(options);
  whole->to(kDouble);
  torch::nn::Embedding part(options);
  part->to(kDouble);
  {
    const torch::NoGradGuard no_grad;
    part->weight.copy_(whole->weight);
  }
  torch::optim::Adagrad alone(whole->parameters(), 0.1);
  hvt::DistributedOptimizer together(*session, torch::optim::Adagrad(part->parameters(), 0.1));
  const auto loss = [](torch::nn::Embedding& table, const at::Tensor& words) {
    return table->forward(words).square().sum(1).mean();
  };
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(step);
    const at::Tensor words = torch::randint(0, 10, {4 * session->world().size}, at::kLong);
    alone.zero_grad();
    loss(whole, words).backward();
    alone.step();
    together.zero_grad();
    loss(part, words.chunk(session->world().size)[session->world().rank]).backward();
    together.step();
  }
  EXPECT(Difference(*whole, *part) < kTolerance);
}

/// Gradients of many MiB are reduced where autograd has put them; in memory order, whatever that
/// is.
void LargeGradients() {
  const auto session = Join();
  const int rank = session->world().rank, size = session->world().size;
  torch::manual_seed(2);
  const at::Tensor last = torch::randn({8, 64, 32, 32}, kDouble)
                              .contiguous(at::MemoryFormat::ChannelsLast)
                              .requires_grad_();
  const at::Tensor first = torch::randn({512, 512}, kDouble).requires_grad_();
  hvt::DistributedOptimizer optimizer(*session, torch::optim::SGD({first, last}, 1.0));
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = first.detach().clone(), y = last.detach().clone();
    optimizer.zero_grad();
    ((rank + 1) * (first.square().sum() + last.pow(3).sum())).backward();
    optimizer.synchronize();
    EXPECT((first.grad() - (size + 1) / 2.0 * 2 * x).abs().max().item<double>() < 1e-12);
    EXPECT((last.grad() - (size + 1) / 2.0 * 3 * y.square()).abs().max().item<double>() < 1e-9);
    EXPECT(last.grad().strides() == last.strides());
  }
  // What others refer to is copied: they keep what they have.
  const at::Tensor given = torch::full({512, 512}, rank + 1.0, kDouble);
  optimizer.zero_grad();
  first.view({512, 512}).backward(given);
  optimizer.synchronize();
  EXPECT_EQUAL(given, torch::full({512, 512}, rank + 1.0, kDouble));
  EXPECT_EQUAL(first.grad(), torch::full({512, 512}, (size + 1) / 2.0, kDouble));
}

void SmallGradientsShare() {
  const auto session = Join();
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 40; ++i) parameters.push_back(torch::ones({100}).requires_grad_());
  hvt::DistributedOptimizer optimizer(*session, torch::optim::SGD(parameters, 0.1));
  std::vector<std::uint64_t> operations;
  for (int step = 0; step < 4; ++step) {
    const std::uint64_t before = session->counters().operations_submitted;
    optimizer.zero_grad();
    at::Tensor loss = torch::zeros({});
    for (const at::Tensor& parameter : parameters) loss = loss + parameter.sum();
    ((session->world().rank + 1) * loss).backward();
    optimizer.step();
    operations.push_back(session->counters().operations_submitted - before);
  }
  EXPECT(operations[0] == 41);  // and the flags
  EXPECT(operations[1] == 2);
  EXPECT(operations[3] == 2);
  const double step = 0.1 * (session->world().size + 1) / 2;
  EXPECT(torch::allclose(parameters[17].detach(), torch::full({100}, 1 - 4 * step)));
}

void LaterParameters() {
  const auto session = Join();
  auto whole = Model(), part = Model();
  const auto parameters = part->parameters();
  const std::vector<at::Tensor> first(parameters.begin(), parameters.begin() + 2);
  const std::vector<at::Tensor> rest(parameters.begin() + 2, parameters.end());
  hvt::DistributedOptimizer optimizer(
      *session, torch::optim::SGD(first, torch::optim::SGDOptions(0.1).momentum(0.9)));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(rest));
  EqualSteps(*session, whole, part, [&](const Batch& mine) {
    optimizer.zero_grad();
    Loss(part, mine).backward();
    optimizer.step();
  });
  torch::optim::Optimizer& base = optimizer;
  base.add_param_group(torch::optim::OptimizerParamGroup({torch::ones({2}).requires_grad_()}));
  EXPECT_CONTAINS(ERROR_OF(kInvalidArgument, optimizer.step()),
                  "add parameters by add_param_group() of the DistributedOptimizer itself");
}

void NewerOptimizerWins() {
  const auto session = Join();
  auto model = Model();
  hvt::DistributedOptimizer earlier(*session, Sgd(model), {.named_parameters = Names(model)});
  const Batch mine = PartOf(BatchOf(0, 4 * session->world().size), *session);
  Loss(model, mine).backward();  // its gradients are in flight, and forgotten
  hvt::DistributedOptimizer newer(*session, Sgd(model), {.named_parameters = Names(model)});
  EXPECT_CONTAINS(ERROR_OF(kInvalidArgument, earlier.step()), "handed to a newer one");
  newer.zero_grad();
  Loss(model, mine).backward();
  newer.step();
  EXPECT_ALIKE(*session, *model);
}

// --- Between backward and step -------------------------------------------------------------------

void Clipping() {
  const auto session = Join();
  auto whole = Model(), part = Model();
  hvt::DistributedOptimizer optimizer(*session, Sgd(part), {.named_parameters = Names(part)});
  torch::optim::SGD alone = Sgd(whole);
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = BatchOf(step, 4 * session->world().size);
    alone.zero_grad();
    Loss(whole, batch).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.1);
    EXPECT(norm > 0.1);
    alone.step();
    optimizer.zero_grad();
    Loss(part, PartOf(batch, *session)).backward();
    optimizer.synchronize();
    torch::nn::utils::clip_grad_norm_(part->parameters(), 0.1);
    optimizer.step();
  }
  EXPECT(Difference(*whole, *part) < kTolerance);
}

/// Clipping what is still to be reduced is stopped by LibTorch, and the step is as if it had not
/// been tried.
void ClippingTooEarly() {
  const auto session = Join();
  auto model = Model();
  hvt::DistributedOptimizer optimizer(*session, Sgd(model), {.named_parameters = Names(model)});
  Loss(model, PartOf(BatchOf(0, 4 * session->world().size), *session)).backward();
  std::string message;
  try {
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1);
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  }
  if (session->world().rank == 0) std::printf("message: %s\n", message.c_str());
  EXPECT_CONTAINS(message, "Meta tensors");
  EXPECT_CONTAINS(ERROR_OF(kInvalidArgument, optimizer.zero_grad()),
                  "zero_grad() was called after backward() but before step()");
  optimizer.step();
  EXPECT_ALIKE(*session, *model);
}

void SchedulerAndCheckpoint() {
  const auto session = Join();
  auto whole = Model(), part = Model();
  torch::optim::SGD alone = Sgd(whole);
  torch::optim::StepLR alone_schedule(alone, 2, 0.5);
  auto optimizer = std::make_unique<hvt::DistributedOptimizer<torch::optim::SGD>>(
      *session, Sgd(part), hvt::DistributedOptions{.named_parameters = Names(part)});
  auto schedule = std::make_unique<torch::optim::StepLR>(*optimizer, 2, 0.5);
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = BatchOf(step, 4 * session->world().size);
    alone.zero_grad();
    Loss(whole, batch).backward();
    alone.step();
    alone_schedule.step();
    optimizer->zero_grad();
    Loss(part, PartOf(batch, *session)).backward();
    static_cast<torch::optim::Optimizer&>(*optimizer).step();
    schedule->step();
    if (step != 2) continue;
    std::stringstream file;
    torch::save(*optimizer, file);
    optimizer = std::make_unique<hvt::DistributedOptimizer<torch::optim::SGD>>(
        *session, torch::optim::SGD(part->parameters(), 99.0),
        hvt::DistributedOptions{.named_parameters = Names(part)});
    torch::load(*optimizer, file);
    schedule = std::make_unique<torch::optim::StepLR>(*optimizer, 2, 0.5);
    schedule->step();  // as many steps as the file has seen
    std::stringstream plain;
    torch::save(*optimizer, plain);
    torch::optim::SGD other(part->parameters(), 99.0);
    torch::load(other, plain);  // it is the checkpoint of the optimizer inside
    EXPECT(other.param_groups()[0].options().get_lr() == 0.05);
  }
  EXPECT(Difference(*whole, *part) < kTolerance);
}

// --- All begin alike -----------------------------------------------------------------------------

void Broadcasts() {
  const auto session = Join();
  const int rank = session->world().rank;
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.fill_(rank);
    for (at::Tensor& buffer : model->buffers()) buffer.fill_(rank + 10);
  }
  const int root = session->world().size - 1;
  hvt::broadcast_parameters(*session, *model, root);
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_EQUAL(parameter.detach(), torch::full_like(parameter, root));
  }
  for (const at::Tensor& buffer : model->buffers()) {
    EXPECT_EQUAL(buffer, torch::full_like(buffer, root + 10));
  }
  const hvt::NamedTensors different = {{"same", torch::ones({2})},
                                       {"w", torch::ones({rank == 0 ? 2 : 3})}};
  const std::string message = ERROR_OF(kMismatch, hvt::broadcast_parameters(*session, different));
  EXPECT_CONTAINS(message, "entry 1: 'w' Float [2] on rank 0; 'w' Float [3] on rank 1");
}

void OptimizerState() {
  const auto session = Join();
  auto model = Model();
  torch::optim::AdamW adam(model->parameters(), session->world().rank == 0 ? 0.25 : 0.5);
  if (session->world().rank == 0) {
    Loss(model, BatchOf(0, 4)).backward();
    adam.step();
  }
  hvt::broadcast_parameters(*session, *model);
  hvt::broadcast_optimizer_state(*session, adam);
  EXPECT(adam.param_groups()[0].options().get_lr() == 0.25);
  EXPECT(adam.state().size() == model->parameters().size());
  for (const at::Tensor& parameter : model->parameters()) {
    auto& state = static_cast<torch::optim::AdamWParamState&>(
        *adam.state().at(parameter.unsafeGetTensorImpl()));
    EXPECT(state.step() == 1);
    const at::Tensor flat = state.exp_avg().reshape({1, -1});
    const at::Tensor all = hvt::allgather(*session, flat);
    EXPECT(all.abs().sum().item<double>() > 0);
    EXPECT_EQUAL(all[0], all[session->world().size - 1]);
  }
}

// --- Operations ----------------------------------------------------------------------------------

at::Tensor Filled(at::IntArrayRef sizes, at::ScalarType type, int value) {
  return torch::full(sizes, value, torch::dtype(type));
}

void OperationsOfEveryType() {
  const auto session = Join();
  const int rank = session->world().rank, size = session->world().size;
  const int sum = size * (size + 1) / 2;
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                          at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat}) {
    for (const std::int64_t length : {0, 1, 7, 1000}) {
      const at::Tensor mine = Filled({length, 3}, type, rank + 1);
      EXPECT_EQUAL(hvt::allreduce(*session, mine, {.op = ReduceOp::kSum}),
                   Filled({length, 3}, type, sum));
      EXPECT_EQUAL(mine, Filled({length, 3}, type, rank + 1));
      EXPECT_EQUAL(hvt::broadcast(*session, mine, size - 1), Filled({length, 3}, type, size));
      const at::Tensor all = hvt::allgather(*session, mine);
      EXPECT(all.size(0) == length * size);
      if (length > 0) EXPECT_EQUAL(all[length * (size - 1)], Filled({3}, type, size));
    }
  }
  const at::Tensor flag = torch::full({3}, rank == 0, torch::dtype(at::kBool));
  EXPECT_EQUAL(hvt::allreduce(*session, flag, {.op = ReduceOp::kMax}),
               torch::full({3}, true, torch::dtype(at::kBool)));
  EXPECT_EQUAL(hvt::allreduce(*session, torch::tensor(rank + 1.0)),
               torch::tensor(sum * 1.0 / size));
  EXPECT_EQUAL(hvt::allreduce(*session, torch::tensor(1.0),
                              {.op = ReduceOp::kSum, .prescale = 2.0, .postscale = 3.0}),
               torch::tensor(6.0 * size));
}

void NonContiguous() {
  const auto session = Join();
  const int rank = session->world().rank, size = session->world().size;
  const at::Tensor base = torch::arange(24, torch::dtype(kDouble)).reshape({4, 6});
  const double mean = (size + 1) / 2.0;
  const at::Tensor holes = (base * (rank + 1)).narrow(1, 1, 3);
  EXPECT_EQUAL(hvt::allreduce(*session, holes), (base * mean).narrow(1, 1, 3));
  const at::Tensor turned = (base * (rank + 1)).t();
  EXPECT_EQUAL(hvt::allreduce(*session, turned), (base * mean).t());
  EXPECT_EQUAL(hvt::allgather(*session, turned).narrow(0, 0, 6), base.t());
  at::Tensor frame = base * (rank + 1);
  const at::Tensor inside = frame.narrow(1, 1, 3);
  auto handle = hvt::allreduce_async_(*session, inside);
  EXPECT(handle.wait().ok());
  EXPECT(handle.get().is_same(inside));
  EXPECT_EQUAL(inside, (base * mean).narrow(1, 1, 3));
  EXPECT_EQUAL(frame.narrow(1, 0, 1), (base * (rank + 1)).narrow(1, 0, 1));  // around it, nothing
  at::Tensor weight = torch::full({2}, rank * 1.0).requires_grad_();
  hvt::broadcast_(*session, weight, size - 1);
  EXPECT_EQUAL(weight.detach(), torch::full({2}, size - 1.0));
  EXPECT_CONTAINS(
      ERROR_OF(kInvalidArgument, hvt::allreduce_(*session, torch::ones({1}).expand({3}))),
      "whose elements share memory");
  EXPECT_CONTAINS(ERROR_OF(kInvalidArgument, hvt::grouped_allreduce_(*session, {frame, inside})),
                  "tensors 0 and 1 of the group share memory");
}

void OtherOperations() {
  const auto session = Join();
  const int rank = session->world().rank, size = session->world().size;
  const at::Tensor rows = torch::full({rank + 1, 2}, rank * 1.0);
  const at::Tensor all = hvt::allgather(*session, rows, {.name = "rows"});
  EXPECT(all.size(0) == size * (size + 1) / 2);
  EXPECT_EQUAL(all[0], torch::zeros({2}));
  const at::Tensor gathered = hvt::gather(*session, rows, 1);
  EXPECT(gathered.defined() == (rank == 1));
  if (rank == 1) EXPECT_EQUAL(gathered, all);
  const at::Tensor reduced = hvt::reduce(*session, torch::ones({3}), 0, {.op = ReduceOp::kSum});
  EXPECT(reduced.defined() == (rank == 0));
  if (rank == 0) EXPECT_EQUAL(reduced, torch::full({3}, size * 1.0));
  const auto pair = hvt::grouped_allreduce(
      *session, {torch::full({2}, rank + 1.0), torch::full({3}, rank + 1, torch::dtype(at::kLong))},
      {.name = "pair", .op = ReduceOp::kMax});
  EXPECT_EQUAL(pair[0], torch::full({2}, size * 1.0));
  EXPECT_EQUAL(pair[1], torch::full({3}, size, torch::dtype(at::kLong)));
  const at::Tensor part =
      hvt::reducescatter(*session, torch::ones({2 * size + 1, 2}), {.op = ReduceOp::kSum});
  EXPECT(part.size(0) == (rank == 0 ? 3 : 2));
  EXPECT_EQUAL(part[0], torch::full({2}, size * 1.0));
  std::vector<std::int64_t> splits(size, 1);
  splits[0] = 2;
  const hvt::Exchanged exchanged =
      hvt::alltoall(*session, torch::full({size + 1}, rank * 1.0), splits);
  EXPECT(exchanged.received_rows == std::vector<std::int64_t>(size, rank == 0 ? 2 : 1));
  EXPECT(exchanged.tensor[-1].item<double>() == size - 1);
  const at::Tensor scattered = hvt::scatter(*session, torch::arange(2 * size), 0);
  EXPECT_EQUAL(scattered, torch::arange(2 * rank, 2 * rank + 2));
  hvt::barrier(*session);
  // Both send first, and more than any buffer holds.
  if (rank < 2) {
    auto sent = hvt::send_async(*session, torch::full({1 << 20}, rank + 1.0), 1 - rank);
    at::Tensor received = torch::empty({1 << 20});
    EXPECT(hvt::recv(*session, received, 1 - rank).is_same(received));
    EXPECT_EQUAL(received, torch::full({1 << 20}, 2.0 - rank));
    EXPECT(sent.wait().ok());
  }
  hvt::barrier(*session);
}

void BadArguments() {
  const auto session = Join();
  const int size = session->world().size;
  const auto status = [](auto handle) { return handle.wait().message(); };
  const at::Tensor one = torch::ones({1});
  EXPECT_CONTAINS(status(hvt::allreduce_async(*session, at::Tensor())), "an undefined tensor");
  EXPECT_CONTAINS(status(hvt::allreduce_async(*session, one.to_sparse())),
                  "pass tensor.to_dense()");
  EXPECT_CONTAINS(status(hvt::allreduce_async(*session, one.to(at::kMeta))),
                  "a tensor on meta is not supported: pass tensor.cpu()");
  EXPECT_CONTAINS(status(hvt::allgather_async(*session, torch::ones({}))), "a scalar has no first");
  EXPECT_CONTAINS(status(hvt::broadcast_async(*session, one, size)), "root rank");
  EXPECT_CONTAINS(status(hvt::reduce_async(*session, one, -1)), "root rank -1 is not a rank");
  EXPECT_CONTAINS(status(hvt::send_async(*session, one, session->world().rank)), "to itself");
  EXPECT_CONTAINS(status(hvt::recv_async(*session, one, size)), "is no rank: ranks are 0 to");
  EXPECT_CONTAINS(status(hvt::grouped_allreduce_async(*session, {})), "at least one tensor");
  EXPECT_CONTAINS(status(hvt::allreduce_async(*session, torch::ones({1}, at::kComplexFloat),
                                              {.op = ReduceOp::kMax})),
                  "complex tensors can only be added up");
  EXPECT_CONTAINS(status(hvt::alltoall_async(*session, torch::ones({1}), {1, 2, 3, 4, 5})),
                  "does not equal number of workers");
  const at::Tensor different = torch::ones({session->world().rank + 1});
  const hvl::Status mismatch = hvt::allreduce_async(*session, different, {.name = "d"}).wait();
  EXPECT(mismatch.code() == StatusCode::kMismatch);
  EXPECT_CONTAINS(mismatch.message(), "allreduce.d");
  auto model = Model();
  const auto wrap = [&](hvt::DistributedOptions options) {
    hvt::DistributedOptimizer optimizer(*session, Sgd(model), std::move(options));
  };
  EXPECT_CONTAINS(ERROR_OF(kInvalidArgument, wrap({.named_parameters = {{"x", one}}})),
                  "does not name parameters of the optimizer: noname.0.0 of shape [8, 6]");
  EXPECT_CONTAINS(ERROR_OF(kInvalidArgument, wrap({.named_parameters = {{"x", one}, {"x", one}}})),
                  "'x' is there twice");
  EXPECT_CONTAINS(ERROR_OF(kInvalidArgument, wrap({.op = ReduceOp::kAdasum})), "average or sum");
  EXPECT_CONTAINS(ERROR_OF(kInvalidArgument, wrap({.backward_passes_per_step = 0})), "at least 1");
  EXPECT_CONTAINS(ERROR_OF(kInvalidArgument, wrap({.gradient_predivide_factor = -1})), "> 0");
  hvt::DistributedOptimizer optimizer(*session, Sgd(model));
  Loss(model, BatchOf(0, 4)).backward();
  optimizer.step();
  model->to(at::kFloat);
  optimizer.zero_grad();
  const auto pass = [&] { model->forward(torch::ones({1, 6})).sum().backward(); };
  EXPECT_CONTAINS(ERROR_OF(kInvalidArgument, pass()), "make a new DistributedOptimizer");
}

// --- Groups of ranks, data, ends -----------------------------------------------------------------

/// Ranks 0 and 2 train together, the others alone.
void ProcessSets() {
  const auto session = Join();
  const int rank = session->world().rank;
  const hvl::ProcessSetId ends = hvl::ValueOrThrow(session->AddProcessSet({0, 2}));
  if (rank != 1) {
    EXPECT_EQUAL(hvt::allreduce(*session, torch::tensor(rank * 1.0), {.process_set = ends}),
                 torch::tensor(1.0));
    EXPECT_EQUAL(hvt::broadcast(*session, torch::tensor(rank), 2, {.process_set = ends}),
                 torch::tensor(2));
  } else {
    EXPECT_CONTAINS(
        hvt::allreduce_async(*session, torch::ones({1}), {.process_set = ends}).wait().message(),
        "rank 1 is not a member of");
  }
  auto whole = Model(), part = Model();
  torch::optim::SGD alone = Sgd(whole);
  hvt::DistributedOptimizer optimizer(*session, Sgd(part),
                                      {.named_parameters = Names(part), .process_set = ends});
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = BatchOf(step, 8);
    const Batch mine = {batch.x.chunk(2)[rank / 2], batch.y.chunk(2)[rank / 2]};
    alone.zero_grad();
    Loss(whole, rank == 1 ? mine : batch).backward();
    alone.step();
    optimizer.zero_grad();
    Loss(part, mine).backward();
    optimizer.step();
  }
  EXPECT(Difference(*whole, *part) < kTolerance);
  EXPECT(session->RemoveProcessSet(ends).ok());
}

struct Numbers : torch::data::datasets::Dataset<Numbers, torch::data::TensorExample> {
  torch::data::TensorExample get(std::size_t index) override {
    return {torch::tensor(static_cast<std::int64_t>(index))};
  }
  std::optional<std::size_t> size() const override { return 23; }
};

void Sampler() {
  const auto session = Join();
  const auto& world = session->world();
  torch::data::samplers::DistributedRandomSampler sampler(
      23, static_cast<std::size_t>(world.size), static_cast<std::size_t>(world.rank), false);
  std::set<std::vector<std::int64_t>> orders;
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    auto loader = torch::data::make_data_loader(
        Numbers().map(torch::data::transforms::Stack<torch::data::TensorExample>()), sampler, 4);
    std::vector<at::Tensor> mine;
    for (const auto& batch : *loader) mine.push_back(batch.data);
    const at::Tensor all = hvt::allgather(*session, torch::cat(mine));
    const at::Tensor sorted = std::get<0>(all.sort());
    EXPECT(std::get<0>(at::_unique(all)).numel() == all.numel());  // no example twice
    EXPECT(all.numel() > 23 - world.size);
    orders.insert({all.data_ptr<std::int64_t>(), all.data_ptr<std::int64_t>() + all.numel()});
  }
  EXPECT(orders.size() == 3);
}

/// Rank 0 has more batches than the others, which take part with zeros.
void UnevenData() {
  const auto session = Join();
  const int rank = session->world().rank, size = session->world().size;
  const at::Tensor weight = torch::zeros({3}, kDouble).requires_grad_();
  hvt::DistributedOptimizer optimizer(*session, torch::optim::SGD({weight}, 1.0));
  const auto step = [&] {
    optimizer.zero_grad();
    ((rank + 1.0) * weight.sum()).backward();
    optimizer.step();
  };
  const int steps = rank == 0 ? 4 : 2;
  for (int i = 0; i < steps; ++i) step();
  const int last = optimizer.join();
  EXPECT(last == 0);
  hvt::broadcast_(*session, weight, 0);
  const double together = (size + 1) / 2.0, alone = 1.0 / size;
  const auto is = [&](double value) {
    return torch::allclose(weight.detach(), torch::full({3}, value, kDouble), 0, kTolerance);
  };
  EXPECT(is(-(2 * together + 2 * alone)));
  for (int i = 0; i < 3; ++i) step();
  EXPECT(is(-(5 * together + 2 * alone)));
}

/// A rank leaves in the middle of a step.
void LeftEarly() {
  auto session = Join();
  const int rank = session->world().rank;
  auto model = Model();
  std::optional<hvt::DistributedOptimizer<torch::optim::SGD>> optimizer;
  optimizer.emplace(*session, Sgd(model),
                    hvt::DistributedOptions{.named_parameters = Names(model)});
  const Batch mine = PartOf(BatchOf(0, 4 * session->world().size), *session);
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    Loss(model, mine).backward();
    optimizer->step();
  }
  optimizer->zero_grad();
  if (rank == 1) {
    optimizer.reset();
    session.reset();
    return;
  }
  hvl::Status status = hvl::Attempt([&] {
    for (;;) {
      Loss(model, mine).backward();
      optimizer->step();
      optimizer->zero_grad();
    }
  });
  EXPECT(status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kAborted);
  EXPECT_CONTAINS(status.message(), "rank 1");
}

/// Rank 1 is killed; the others have an exception soon, and tell how soon.
void Killed() {
  const auto session = Join();
  auto model = Model();
  hvt::DistributedOptimizer optimizer(*session, Sgd(model), {.named_parameters = Names(model)});
  const Batch mine = PartOf(BatchOf(0, 4 * session->world().size), *session);
  const auto step = [&] {
    optimizer.zero_grad();
    Loss(model, mine).backward();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) step();
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  if (session->world().rank == 1) {
    const at::Tensor when = torch::full({1}, now(), kDouble);
    hvt::broadcast(*session, when, 1);
    std::raise(SIGKILL);
  }
  const at::Tensor when = hvt::broadcast(*session, torch::zeros({1}, kDouble), 1);
  try {
    for (;;) step();
  } catch (const hvl::Error& error) {
    std::printf("after %.3f s: %s\n", now() - when.item<double>(), error.what());
    EXPECT(error.status().code() == StatusCode::kUnavailable);
    EXPECT(error.status().culprit_rank() == 1);
  }
}

/// Prints when the last backward began and ended, in microseconds since the epoch.
void Overlap() {
  const auto session = Join();
  torch::nn::Sequential model;
  for (int i = 0; i < 12; ++i) model->push_back(torch::nn::Linear(384, 384));
  hvt::broadcast_parameters(*session, *model);
  hvt::DistributedOptimizer optimizer(*session, torch::optim::SGD(model->parameters(), 1e-4),
                                      {.named_parameters = Names(model)});
  const auto now = [] {
    return std::chrono::duration<double, std::micro>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model->forward(torch::ones({256, 384})).square().mean();
    hvt::barrier(*session);
    const double begin = now();
    loss.backward();
    const double end = now();
    optimizer.step();
    if (session->world().rank == 0) std::printf("backward %.0f %.0f\n", begin, end);
  }
}

void NoPython() {
  const auto session = Join();
  hvt::allreduce(*session, torch::ones({1}));
  std::ifstream maps("/proc/self/maps");
  std::string line;
  bool has_torch = false, has_runtime = false;
  while (std::getline(maps, line)) {
    EXPECT(line.find("python") == std::string::npos || line.find(".so") == std::string::npos ||
           line.substr(line.rfind('/')).find("python") == std::string::npos);
    has_torch = has_torch || line.find("libtorch_cpu.so") != std::string::npos;
    has_runtime = has_runtime || line.find("libhorovodlite.so") != std::string::npos;
  }
  EXPECT(has_torch);
  EXPECT(has_runtime);
}

// --- Speed: no test; tests/bench does the same in Python
// -------------------------------------------

/// Parameters of ResNet-50's shapes, 25.6 million elements in 161 tensors.
std::vector<at::Tensor> Resnet50Shapes() {
  std::vector<at::Tensor> parameters;
  const auto add = [&](at::IntArrayRef sizes) {
    parameters.push_back(torch::zeros(sizes).requires_grad_());
  };
  const auto convolution = [&](std::int64_t outputs, std::int64_t inputs, std::int64_t width) {
    add({outputs, inputs, width, width});
    add({outputs});
    add({outputs});
  };
  convolution(64, 3, 7);
  std::int64_t channels = 64;
  const std::pair<std::int64_t, int> stages[] = {{64, 3}, {128, 4}, {256, 6}, {512, 3}};
  for (const auto& [planes, blocks] : stages) {
    for (int block = 0; block < blocks; ++block) {
      convolution(planes, channels, 1);
      convolution(planes, planes, 3);
      convolution(4 * planes, planes, 1);
      if (block == 0) convolution(4 * planes, channels, 1);
      channels = 4 * planes;
    }
  }
  add({1000, channels});
  add({1000});
  return parameters;
}

/// Next to no computation, so that communication remains: milliseconds of a step, without and with
/// the other ranks.
void TimeSteps() {
  const auto session = Join();
  const at::Tensor constants = torch::linspace(0, session->world().rank + 1.0, 2359296);
  const auto time = [&](torch::optim::Optimizer& optimizer,
                        const std::vector<at::Tensor>& parameters, const auto& zero_grad) {
    std::vector<double> milliseconds;
    for (int step = 0; step < 60; ++step) {
      hvt::barrier(*session);
      const auto begin = std::chrono::steady_clock::now();
      zero_grad();
      at::Tensor total = torch::zeros({});
      for (const at::Tensor& parameter : parameters) {
        total = total + torch::dot(parameter.flatten(), constants.narrow(0, 0, parameter.numel()));
      }
      total.backward();
      optimizer.step();
      milliseconds.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
              .count());
    }
    std::sort(milliseconds.begin() + 10, milliseconds.end());
    return milliseconds[10 + 25];
  };
  const auto parameters = Resnet50Shapes();
  torch::optim::SGD plain(parameters, 1e-6);
  const double alone = time(plain, parameters, [&] { plain.zero_grad(); });
  hvt::DistributedOptimizer optimizer(*session, torch::optim::SGD(parameters, 1e-6));
  const double together = time(optimizer, parameters, [&] { optimizer.zero_grad(); });
  std::printf("median of 50 steps: %.2f ms alone, %.2f ms together\n", alone, together);
}

const std::map<std::string, void (*)()> kCases = {
    {"equal_sgd", EqualSgd},
    {"equal_adam", EqualAdam},
    {"equal_adamw", EqualAdamW},
    {"equal_rmsprop", EqualRmsprop},
    {"equal_adagrad", EqualAdagrad},
    {"equal_lbfgs", EqualLbfgs},
    {"accumulation", Accumulation},
    {"no_sync", NoSync},
    {"too_many_passes", TooManyPasses},
    {"unused_parameters", UnusedParameters},
    {"frozen_parameters", FrozenParameters},
    {"sparse_gradients", SparseGradients},
    {"large_gradients", LargeGradients},
    {"small_gradients_share", SmallGradientsShare},
    {"later_parameters", LaterParameters},
    {"newer_optimizer_wins", NewerOptimizerWins},
    {"clipping", Clipping},
    {"clipping_too_early", ClippingTooEarly},
    {"scheduler_and_checkpoint", SchedulerAndCheckpoint},
    {"broadcasts", Broadcasts},
    {"optimizer_state", OptimizerState},
    {"operations_of_every_type", OperationsOfEveryType},
    {"non_contiguous", NonContiguous},
    {"other_operations", OtherOperations},
    {"bad_arguments", BadArguments},
    {"process_sets", ProcessSets},
    {"sampler", Sampler},
    {"uneven_data", UnevenData},
    {"left_early", LeftEarly},
    {"killed", Killed},
    {"overlap", Overlap},
    {"no_python", NoPython},
    {"time_steps", TimeSteps},
};

}  // namespace
}  // namespace cases

int main(int count, char** arguments) {
  torch::set_num_threads(1);
  for (int i = 1; i < count; ++i) {
    const auto found = cases::kCases.find(arguments[i]);
    if (found == cases::kCases.end()) {
      std::fprintf(stderr, "no case %s\n", arguments[i]);
      return 2;
    }
    try {
      found->second();
    } catch (const std::exception& error) {
      std::printf("FAILED %s: %s\n", arguments[i], error.what());
      return 1;
    }
    std::printf("ok %s\n", arguments[i]);
    std::fflush(stdout);
  }
  return 0;
}
