// The distance between two processors: how long a cache line takes from one to the other and back,
// halved. Virtual processors move between physical cores, so the answer changes while one measures;
// this is asked before and after every repetition.
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "tests/bench/native/command.h"
#include "tests/bench/native/control.h"
#include "tests/bench/native/shared_region.h"

namespace hvl::bench {
namespace {

// The best of several batches: a batch in which one side was not running tells nothing.
constexpr int kBatches = 10;
constexpr int kRoundTrips = 300;

/// A ball on a cache line of its own: odd for one side, even for the other.
struct alignas(128) Ball {
  std::atomic<int> value{0};
};

void WaitFor(const Ball& ball, int value) {
  while (ball.value.load(std::memory_order_acquire) != value) _mm_pause();
}

/// Answers every odd value with the next even one.
void Return(Ball& ball) {
  for (int i = 0; i < kBatches * kRoundTrips; ++i) {
    WaitFor(ball, 2 * i + 1);
    ball.value.store(2 * i + 2, std::memory_order_release);
  }
}

/// Seconds one way.
double Serve(Ball& ball) {
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < kBatches; ++batch) {
    const double start = control_now();
    for (int i = batch * kRoundTrips; i < (batch + 1) * kRoundTrips; ++i) {
      ball.value.store(2 * i + 1, std::memory_order_release);
      WaitFor(ball, 2 * i + 2);
    }
    best = std::min(best, (control_now() - start) / kRoundTrips / 2);
  }
  return best;
}

/// The second player; sleeps until a game is wanted.
class Partner {
 public:
  explicit Partner(int cpu) : thread_([this, cpu] { Play(cpu); }) {}
  ~Partner() { Ask(nullptr); }
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  void Ask(Ball* ball) {
    {
      const std::lock_guard lock(mutex_);
      asked_ = true;
      ball_ = ball;
    }
    changed_.notify_one();
  }

 private:
  void Play(int cpu) {
    PinTo(cpu);
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return asked_; });
      asked_ = false;
      if (ball_ == nullptr) return;
      Ball& ball = *ball_;
      lock.unlock();
      Return(ball);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = false;
  Ball* ball_ = nullptr;
  std::jthread thread_;
};

}  // namespace
}  // namespace hvl::bench

/// probe <processor> <processor>
int main(int argc, char** argv) {
  using namespace hvl::bench;  // NOLINT(google-build-using-namespace)
  if (argc != 3) Misunderstood(argv[0]);
  PinTo(ParseInt(argv[1]));
  Partner partner(ParseInt(argv[2]));
  const int control = control_connect(0);
  char line[kControlLineBytes];
  while (control_next(control, line)) {
    Ball ball;
    partner.Ask(&ball);
    control_reply(control, Serve(ball));
  }
  return 0;
}
