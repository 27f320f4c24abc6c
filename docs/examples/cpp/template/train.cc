// Trains a linear model on as many ranks as hvlrun starts: `hvlrun -np 2 ./train`.
#include <horovodlite/torch.h>
#include <torch/torch.h>

#include <cstdio>

namespace hvt = hvl::torch;

int main() try {
  const auto session = hvl::ValueOrThrow(hvl::Session::Create());
  const int rank = session->world().rank, size = session->world().size;
  torch::manual_seed(rank);  // every rank has data of its own

  torch::nn::Linear model(8, 1);
  hvt::broadcast_parameters(*session, *model);  // those of rank 0
  hvt::DistributedOptimizer optimizer(
      *session, torch::optim::SGD(model->parameters(), 0.01 * size),
      {.named_parameters = model->named_parameters().pairs()});

  at::Tensor loss;
  for (int step = 0; step < 100; ++step) {
    const at::Tensor x = torch::randn({32, 8});
    loss = torch::mse_loss(model->forward(x), x.sum(1, true));
    optimizer.zero_grad();
    loss.backward();  // gradients are averaged while this runs
    optimizer.step();
  }
  const at::Tensor mean = hvt::allreduce(*session, loss.detach(), {.name = "loss"});
  if (rank == 0) std::printf("loss on %d ranks: %.4f\n", size, mean.item<double>());
  return 0;
} catch (const std::exception& error) {  // hvl::Error says which rank is to blame
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
