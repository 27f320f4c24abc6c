// Chooses sizes while a program trains, from the times of its steps: a hill climb in powers of two.
//
// A sample is some consecutive steps with the same sizes. A neighbour of the best sizes known is
// tried in samples that alternate with samples of the best (best, neighbour, best, neighbour), so
// that a machine that gets slower meanwhile is slower for both, and wins if the median of its steps
// is clearly shorter. Then it is the best, and the climb goes on in that direction; else in the
// other one, then with the next size. So a bad choice costs the steps of its samples and no more,
// and what is chosen is never worse than the start, as far as the samples tell.
//
// Afterwards the tuner watches: when steps stay much longer than they were, it starts again,
// because the program or the machine has changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/clock.h"

namespace hvl::plan {

/// A size that may be changed, by factors of two within the limits.
struct TunedSize {
  std::string name;
  std::int64_t bytes;  ///< at the start
  std::int64_t least, most;
};

struct TunerOptions {
  int warm_up_samples = 3;  ///< thrown away at the start
  int steps_per_sample = 10;
  int most_samples = 80;  ///< of one climb; after them the best so far is kept
};

/// What one sample has shown, for a log.
struct TunerSample {
  std::vector<std::int64_t> sizes;
  Duration median_step{};
  double bytes_per_second = 0;
};

/// Pure; not thread-safe.
class Tuner {
 public:
  /// `sizes` is not empty.
  Tuner(std::vector<TunedSize> sizes, TunerOptions options);

  /// A step that reduced `bytes` has ended. Returns a sample when the step was its last one; then
  /// sizes() may have changed.
  std::optional<TunerSample> OnStep(TimePoint now, std::size_t bytes);

  /// The next step does not follow at once on the last one: its time says nothing.
  void Pause() { last_step_.reset(); }

  /// What to use from now on, in the order of the constructor.
  const std::vector<std::int64_t>& sizes() const { return neighbours_turn_ ? neighbour_ : best_; }
  /// Nothing is being tried at present.
  bool settled() const { return settled_; }

 private:
  void StartClimb();
  /// Where to go from the best sizes; settles when there is nothing left to try.
  void NextNeighbour();
  bool SetNeighbour();
  void TurnOrNextSize();
  void EndSample();
  void Judge();
  void Watch(Duration mean);

  const std::vector<TunedSize> limits_;
  const TunerOptions options_;

  std::vector<std::int64_t> best_, neighbour_;
  std::vector<Duration> best_times_, neighbour_times_;  // of steps, in this comparison
  bool neighbours_turn_ = false;
  int rounds_left_ = 0;  // of this comparison

  std::size_t which_ = 0;  // of the sizes is being changed
  bool upwards_ = true;
  bool climbed_ = false;  // in this direction

  std::vector<Duration> sample_;  // the running one
  std::size_t sample_bytes_ = 0;
  std::optional<TimePoint> last_step_;
  int warm_up_left_;
  int samples_ = 0;  // of this climb

  bool settled_ = false;
  std::optional<Duration> usual_;  // a step's time once settled
  int slow_samples_ = 0;           // in a row
};

}  // namespace hvl::plan
