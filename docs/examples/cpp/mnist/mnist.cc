// Trains a convolutional network on handwritten digits, on as many ranks as hvlrun starts; the same
// as docs/examples/mnist.py. The data are what export.py has written:
//   python export.py data && hvlrun -np 2 ./train data [epochs]
#include <horovodlite/torch.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hvt = hvl::torch;

namespace {

constexpr std::int64_t kBatchSize = 32;  // images per step and rank
constexpr double kRate = 0.02;           // per rank

/// The values of a file in MNIST's format: bytes in any number of dimensions.
at::Tensor ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const auto number = [&file] {  // four bytes, the highest first
    std::uint8_t bytes[4] = {};
    file.read(reinterpret_cast<char*>(bytes), sizeof(bytes));
    return std::int64_t{bytes[0]} << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
  };
  const std::int64_t magic = number();
  if (!file || magic >> 8 != 8) throw std::runtime_error("no file of bytes: " + path);
  std::vector<std::int64_t> extents(magic & 0xFF);
  for (std::int64_t& extent : extents) extent = number();
  at::Tensor values = torch::empty(extents, torch::kByte);
  file.read(static_cast<char*>(values.data_ptr()), values.numel());
  if (!file) throw std::runtime_error("the file ends too early: " + path);
  return values;
}

struct Digits : torch::data::datasets::Dataset<Digits> {
  Digits(const std::string& folder, const std::string& part)
      : images(ReadBytes(folder + "/" + part + "-images-idx3-ubyte").unsqueeze(1) / 255.0),
        labels(ReadBytes(folder + "/" + part + "-labels-idx1-ubyte").to(torch::kLong)) {}

  torch::data::Example<> get(std::size_t index) override {
    const auto at = static_cast<std::int64_t>(index);
    return {images[at], labels[at]};
  }
  std::optional<std::size_t> size() const override { return labels.numel(); }

  at::Tensor images, labels;
};

/// Two convolutions and two linear layers: 0.4 million parameters.
torch::nn::Sequential Net() {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace): names of layers only
  return Sequential(Conv2d(Conv2dOptions(1, 32, 3).padding(1)), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(32, 64, 3).padding(1)), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(64 * 7 * 7, 128), ReLU(), Dropout(0.3), Linear(128, 10));
}

/// Moved by up to two pixels: 4,500 images are few, so they are shown in many places.
at::Tensor Shift(const at::Tensor& images) {
  const at::Tensor by = torch::randint(-2, 3, {2}, torch::kLong);
  return images.roll({by[0].item<std::int64_t>(), by[1].item<std::int64_t>()}, {2, 3});
}

void Train(hvl::Session& session, torch::nn::Sequential& model, Digits digits,
           std::size_t epochs) {
  const auto& world = session.world();
  // Each step averages over `size` times as many images, so it may be that much longer.
  const double rate = kRate * world.size;
  hvt::DistributedOptimizer optimizer(
      session,
      torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(rate).momentum(0.9)),
      {.named_parameters = model->named_parameters().pairs()});
  // This rank's part of the data, in a new order each epoch.
  torch::data::samplers::DistributedRandomSampler sampler(*digits.size(), world.size, world.rank);
  const std::size_t per_rank = (*digits.size() + world.size - 1) / world.size;
  const std::size_t steps = epochs * ((per_rank + kBatchSize - 1) / kBatchSize);
  std::size_t step = 0;
  for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    auto loader = torch::data::make_data_loader(
        digits.map(torch::data::transforms::Stack<>()), sampler, kBatchSize);
    double sum = 0;
    std::size_t batches = 0;
    for (const auto& batch : *loader) {
      const double progress = static_cast<double>(step++) / static_cast<double>(steps);
      optimizer.param_groups()[0].options().set_lr(rate * (1 - 0.98 * progress));
      optimizer.zero_grad();
      const at::Tensor loss =
          torch::nn::functional::cross_entropy(model->forward(Shift(batch.data)), batch.target);
      loss.backward();
      optimizer.step();
      sum += loss.item<double>();
      ++batches;
    }
    if (world.rank == 0) {
      std::printf("epoch %zu: loss %.3f\n", epoch + 1, sum / static_cast<double>(batches));
    }
  }
}

/// Of all ranks together: each counts its part of the images.
double Accuracy(hvl::Session& session, torch::nn::Sequential& model, const Digits& digits) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const auto& world = session.world();
  const at::Tensor images = digits.images.slice(0, world.rank, std::nullopt, world.size);
  const at::Tensor labels = digits.labels.slice(0, world.rank, std::nullopt, world.size);
  const std::int64_t correct =
      (model->forward(images).argmax(1) == labels).sum().item<std::int64_t>();
  const at::Tensor counts = hvt::allreduce(session, torch::tensor({correct, labels.numel()}),
                                           {.name = "accuracy", .op = hvl::ReduceOp::kSum});
  return counts[0].item<double>() / counts[1].item<double>();
}

}  // namespace

int main(int count, char** arguments) try {
  if (count < 2) throw std::runtime_error("usage: train DATA [EPOCHS]; see export.py");
  const std::string folder = arguments[1];
  const std::size_t epochs = count > 2 ? std::stoul(arguments[2]) : 10;
  const auto session = hvl::ValueOrThrow(hvl::Session::Create());
  const auto& world = session->world();
  // The ranks of a host share its processors.
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  torch::set_num_threads(std::max(1, processors / world.local_size));
  torch::manual_seed(1 + world.rank);  // the weights are those of rank 0
  torch::nn::Sequential model = Net();
  hvt::broadcast_parameters(*session, *model);
  Train(*session, model, Digits(folder, "train"), epochs);
  const Digits held_out(folder, "t10k");
  const double reached = Accuracy(*session, model, held_out);
  if (world.rank == 0) {
    std::printf("accuracy on %zu held-out images after training on %d rank%s: %.1f%%\n",
                *held_out.size(), world.size, world.size > 1 ? "s" : "", 100 * reached);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
