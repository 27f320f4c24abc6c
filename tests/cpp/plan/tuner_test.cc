// The tuner finds the bottom of noisy valleys, never ends above where it began, and notices when
// the valley moves.
#include "csrc/plan/tuner.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>

namespace hvl::plan {
namespace {

using namespace std::chrono_literals;
using Sizes = std::vector<std::int64_t>;
constexpr std::int64_t kMiB = 1 << 20;

// A program whose step takes `time(sizes)`, give or take some noise, now and then with a hiccup.
class Program {
 public:
  Program(Tuner& tuner, unsigned seed, std::function<double(const Sizes&)> milliseconds)
      : tuner_(tuner), random_(seed), milliseconds_(std::move(milliseconds)) {}

  std::vector<TunerSample> Run(int steps) {
    std::vector<TunerSample> samples;
    std::uniform_real_distribution<double> noise(0.97, 1.03);
    for (int step = 0; step < steps; ++step) {
      double time = milliseconds_(tuner_.sizes()) * noise(random_);
      if (random_() % 20 == 0) time *= 3;
      now_ += std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(time));
      if (auto sample = tuner_.OnStep(now_, 100 << 20)) samples.push_back(*sample);
    }
    return samples;
  }
  void Become(std::function<double(const Sizes&)> milliseconds) {
    milliseconds_ = std::move(milliseconds);
  }

 private:
  Tuner& tuner_;
  std::mt19937 random_;
  std::function<double(const Sizes&)> milliseconds_;
  TimePoint now_{};
};

// Ten per cent longer for each factor of two from the best size.
double Valley(std::int64_t size, std::int64_t best) {
  return std::pow(1.1, std::abs(std::log2(static_cast<double>(size) / static_cast<double>(best))));
}

std::vector<TunedSize> TwoSizes() {
  return {{"bucket", 8 * kMiB, kMiB / 4, 128 * kMiB}, {"first", kMiB, kMiB / 16, 8 * kMiB}};
}

TEST_CASE("the tuner comes within a factor of two of the best sizes") {
  const auto seed = GENERATE(range(1U, 41U));
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::int64_t best_bucket = (kMiB / 4) << (random() % 10);
  const std::int64_t best_first = (kMiB / 16) << (random() % 8);
  const auto time = [&](const Sizes& sizes) {
    return 50 * Valley(sizes[0], best_bucket) * Valley(sizes[1], best_first);
  };
  Tuner tuner(TwoSizes(), {});
  Program program(tuner, seed, time);
  program.Run(1200);
  REQUIRE(tuner.settled());
  CHECK(std::abs(std::log2(static_cast<double>(tuner.sizes()[0]) /
                           static_cast<double>(best_bucket))) <= 1);
  CHECK(std::abs(std::log2(static_cast<double>(tuner.sizes()[1]) /
                           static_cast<double>(best_first))) <= 1);
}

TEST_CASE("sizes that make no difference stay as they were, nearly always") {
  int changed = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    Tuner tuner(TwoSizes(), {});
    Program program(tuner, seed, [](const Sizes&) { return 20.0; });
    program.Run(1200);
    REQUIRE(tuner.settled());
    if (tuner.sizes() != Sizes{8 * kMiB, kMiB}) ++changed;
  }
  CHECK(changed <= 10);
}

TEST_CASE("a sample tells the sizes it was taken with, the steps' median and the throughput") {
  Tuner tuner({{"bucket", kMiB, kMiB, 2 * kMiB}}, {.warm_up_samples = 1, .steps_per_sample = 4});
  TimePoint now{};
  std::vector<TunerSample> samples;
  for (int step = 0; step <= 20; ++step) {
    if (auto sample = tuner.OnStep(now, 1000)) samples.push_back(*sample);
    now += tuner.sizes()[0] == kMiB ? 10ms : 5ms;
  }
  REQUIRE(samples.size() == 5);  // warm-up, best, neighbour, best, neighbour
  CHECK(samples[1].sizes == Sizes{kMiB});
  CHECK(samples[1].median_step == 10ms);
  CHECK(samples[1].bytes_per_second == Approx(100e3));
  CHECK(samples[2].sizes == Sizes{2 * kMiB});
  CHECK(samples[2].median_step == 5ms);
  CHECK(tuner.sizes() == Sizes{2 * kMiB});
  CHECK(tuner.settled());
}

TEST_CASE("limits are kept, and a size without room is left alone") {
  Tuner tuner({{"fixed", 64, 64, 64}, {"free", 100, 80, 130}}, {.warm_up_samples = 0});
  Program program(tuner, 1, [](const Sizes& sizes) { return 1000.0 / double(sizes[1]); });
  for (const TunerSample& sample : program.Run(600)) {
    CHECK(sample.sizes[0] == 64);
    CHECK(sample.sizes[1] >= 80);
    CHECK(sample.sizes[1] <= 130);
  }
  CHECK(tuner.sizes() == Sizes{64, 130});
}

TEST_CASE("when steps stay much longer than they were, the climb starts again") {
  Tuner tuner({{"bucket", 8 * kMiB, kMiB / 4, 128 * kMiB}}, {});
  const auto valley = [](double base, std::int64_t best) {
    return [=](const Sizes& sizes) { return base * Valley(sizes[0], best); };
  };
  Program program(tuner, 7, valley(20, 16 * kMiB));
  program.Run(1200);
  REQUIRE(tuner.settled());
  CHECK(tuner.sizes() == Sizes{16 * kMiB});
  program.Become(valley(60, kMiB));
  program.Run(100);
  CHECK_FALSE(tuner.settled());
  program.Run(1200);
  CHECK(tuner.settled());
  CHECK(tuner.sizes() == Sizes{kMiB});
}

TEST_CASE("a climb ends after so many samples and keeps the best so far") {
  Tuner tuner({{"bucket", 1, 1, std::int64_t{1} << 40}}, {.warm_up_samples = 0, .most_samples = 8});
  Program program(tuner, 3,
                  [](const Sizes& sizes) { return 1e6 / std::log2(1 + double(sizes[0])); });
  program.Run(200);
  CHECK(tuner.settled());
  CHECK(tuner.sizes() == Sizes{4});
}

}  // namespace
}  // namespace hvl::plan
