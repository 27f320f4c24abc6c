#include "csrc/plan/tuner.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "csrc/base/check.h"

namespace hvl::plan {
namespace {

constexpr int kRounds = 2;         // pairs of samples until a verdict
constexpr double kClearly = 0.98;  // of the best one's time: the neighbour wins
// Once settled: so many samples in a row, so much longer than usual, start a new climb.
constexpr int kSlowSamples = 5;
constexpr double kMuchLonger = 1.5;

Duration Total(const std::vector<Duration>& times) {
  return std::accumulate(times.begin(), times.end(), Duration{});
}

Duration Median(std::vector<Duration> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

Tuner::Tuner(std::vector<TunedSize> sizes, TunerOptions options)
    : limits_(std::move(sizes)), options_(options), warm_up_left_(options.warm_up_samples) {
  HVL_CHECK(!limits_.empty() && options_.steps_per_sample > 0);
  for (const TunedSize& size : limits_) best_.push_back(size.bytes);
  StartClimb();
}

void Tuner::StartClimb() {
  settled_ = false;
  usual_.reset();
  samples_ = slow_samples_ = 0;
  which_ = 0;
  upwards_ = true;
  climbed_ = false;
  NextNeighbour();
}

void Tuner::NextNeighbour() {
  neighbours_turn_ = false;
  best_times_.clear();
  neighbour_times_.clear();
  rounds_left_ = kRounds;
  while (which_ < limits_.size() && !SetNeighbour()) TurnOrNextSize();
  settled_ = which_ == limits_.size() || samples_ >= options_.most_samples;
}

bool Tuner::SetNeighbour() {
  const TunedSize& limits = limits_[which_];
  const std::int64_t size = best_[which_];
  neighbour_ = best_;
  neighbour_[which_] = std::clamp(upwards_ ? size * 2 : size / 2, limits.least, limits.most);
  return neighbour_[which_] != size;
}

// A hill that was climbed from one side need not be climbed from the other.
void Tuner::TurnOrNextSize() {
  if (upwards_ && !climbed_) {
    upwards_ = false;
  } else {
    ++which_;
    upwards_ = true;
  }
  climbed_ = false;
}

std::optional<TunerSample> Tuner::OnStep(TimePoint now, std::size_t bytes) {
  const std::optional<TimePoint> before = std::exchange(last_step_, now);
  if (!before) return std::nullopt;  // nobody knows when the first step began
  sample_.push_back(now - *before);
  sample_bytes_ += bytes;
  if (sample_.size() < static_cast<std::size_t>(options_.steps_per_sample)) return std::nullopt;

  TunerSample sample{.sizes = sizes(), .median_step = Median(sample_)};
  const double seconds = std::chrono::duration<double>(Total(sample_)).count();
  if (seconds > 0) sample.bytes_per_second = static_cast<double>(sample_bytes_) / seconds;
  EndSample();
  sample_.clear();
  sample_bytes_ = 0;
  return sample;
}

void Tuner::EndSample() {
  if (warm_up_left_ > 0) {
    --warm_up_left_;
  } else if (settled_) {
    // The mean, because steps are reported late and several at once.
    Watch(Total(sample_) / static_cast<int>(sample_.size()));
  } else {
    ++samples_;
    std::vector<Duration>& times = neighbours_turn_ ? neighbour_times_ : best_times_;
    // The first step began with the sizes before.
    times.insert(times.end(), sample_.begin() + (sample_.size() > 1 ? 1 : 0), sample_.end());
    neighbours_turn_ = !neighbours_turn_;
    if (!neighbours_turn_ && --rounds_left_ == 0) Judge();
  }
}

void Tuner::Judge() {
  const auto best = static_cast<double>(Median(best_times_).count());
  if (static_cast<double>(Median(neighbour_times_).count()) < kClearly * best) {
    best_ = neighbour_;
    climbed_ = true;
  } else {
    TurnOrNextSize();
  }
  NextNeighbour();
}

void Tuner::Watch(Duration mean) {
  if (!usual_) {
    usual_ = mean;
    return;
  }
  const bool slow =
      static_cast<double>(mean.count()) > kMuchLonger * static_cast<double>(usual_->count());
  slow_samples_ = slow ? slow_samples_ + 1 : 0;
  if (slow_samples_ == kSlowSamples) StartClimb();
}

}  // namespace hvl::plan
