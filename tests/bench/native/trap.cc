// What it costs when two arenas lie a multiple of 256 MiB apart: one pinned process adds two slices
// of 512 KiB in place, at several distances. Prints one line per distance: bytes, seconds.
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>

#include "tests/bench/native/command.h"
#include "tests/bench/native/control.h"
#include "tests/bench/native/shared_region.h"

namespace hvl::bench {
namespace {

constexpr std::size_t kSliceBytes = 512 << 10;
constexpr std::size_t kRegionBytes = 3 * kAliasBytes;
constexpr int kBatches = 20;
constexpr int kIterations = 20;

constexpr std::array<std::size_t, 6> kDistances = {
    kAliasBytes + (std::size_t{8} << 20),  // nothing special
    kAliasBytes,
    2 * kAliasBytes,
    kAliasBytes + 64,
    kAliasBytes + 4096,
    kAliasBytes + (std::size_t{1} << 20),
};

void AddInPlace(float* a, float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

double Measure(float* a, float* b) {
  constexpr std::size_t kCount = kSliceBytes / sizeof(float);
  std::fill_n(a, kCount, 0.0F);
  std::fill_n(b, kCount, 0.0F);
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < kBatches; ++batch) {
    const double start = control_now();
    for (int i = 0; i < kIterations; ++i) {
      AddInPlace(a, b, kCount);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // each pass is a pass of its own
    }
    best = std::min(best, (control_now() - start) / kIterations);
  }
  return best;
}

}  // namespace
}  // namespace hvl::bench

/// trap <processor>
int main(int argc, char** argv) {
  using namespace hvl::bench;  // NOLINT(google-build-using-namespace)
  if (argc != 2) Misunderstood(argv[0]);
  PinTo(ParseInt(argv[1]));
  const int fd = memfd_create("hvl-bench-trap", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(kRegionBytes)) != 0) control_die("memfd_create");
  char* base = ReserveAddresses(kRegionBytes);
  char* region = static_cast<char*>(MapAt(base, kRegionBytes, fd, 0));
  for (const std::size_t distance : kDistances) {
    printf("%zu %.9g\n", distance,
           Measure(reinterpret_cast<float*>(region), reinterpret_cast<float*>(region + distance)));
  }
  return 0;
}
