// The limit: what an allreduce of two processes would cost if nothing had to be agreed on. Each
// process adds its slice of all arenas, in mapped shared memory, and writes the sum into all
// arenas: one read and one write of the whole size per process. Nobody waits for anybody inside the
// timed loop. With ordinary stores and with stores past the cache; the better one is the limit.
#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "tests/bench/native/command.h"
#include "tests/bench/native/control.h"
#include "tests/bench/native/shared_region.h"

namespace hvl::bench {
namespace {

constexpr std::size_t kMaxRanks = 8;
constexpr std::size_t kHeaderBytes = 4096;
constexpr std::size_t kMaxArenaBytes = kAliasBytes;
// From one arena to the next in the address space: far from a multiple of kAliasBytes.
constexpr std::size_t kArenaStride = kMaxArenaBytes + (std::size_t{8} << 20);
// A slice of fewer bytes than a vector register is added by scalar code.
constexpr std::size_t kVectorBytes = 32;

struct Header {
  std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint32_t> phase;
};

using Arenas = std::array<float*, kMaxRanks>;

void Barrier(Header& header, std::uint32_t ranks) {
  const std::uint32_t phase = header.phase.load(std::memory_order_acquire);
  if (header.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks) {
    header.arrived.store(0, std::memory_order_relaxed);
    header.phase.store(phase + 1, std::memory_order_release);
    return;
  }
  while (header.phase.load(std::memory_order_acquire) == phase) sched_yield();
}

// With two ranks the compiler unrolls both inner loops away.
template <std::size_t kRanks, bool kStreaming>
[[gnu::target("avx")]] void AddVectors(const Arenas& arenas, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; i += kVectorBytes / sizeof(float)) {
    __m256 sum = _mm256_load_ps(arenas[0] + i);
    for (std::size_t rank = 1; rank < kRanks; ++rank) {
      sum = _mm256_add_ps(sum, _mm256_load_ps(arenas[rank] + i));
    }
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      if constexpr (kStreaming) {
        _mm256_stream_ps(arenas[rank] + i, sum);
      } else {
        _mm256_store_ps(arenas[rank] + i, sum);
      }
    }
  }
  if constexpr (kStreaming) _mm_sfence();
}

template <bool kStreaming>
void Add(const Arenas& arenas, std::size_t ranks, std::size_t begin, std::size_t end) {
  if (end - begin < kVectorBytes / sizeof(float)) {
    for (std::size_t i = begin; i < end; ++i) {
      float sum = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) sum += arenas[rank][i];
      for (std::size_t rank = 0; rank < ranks; ++rank) arenas[rank][i] = sum;
    }
    return;
  }
  switch (ranks) {
    case 2:
      return AddVectors<2, kStreaming>(arenas, begin, end);
    case 3:
      return AddVectors<3, kStreaming>(arenas, begin, end);
    case 4:
      return AddVectors<4, kStreaming>(arenas, begin, end);
    default:
      fprintf(stderr, "the limit is measured for 2 to 4 ranks, not %zu\n", ranks);
      exit(2);
  }
}

struct Job {
  Header& header;
  const Arenas& arenas;
  std::size_t rank, ranks, count;

  std::size_t begin() const { return Border(rank); }
  std::size_t end() const { return Border(rank + 1); }

 private:
  // Slices begin at whole vectors, so that loads are aligned and no line is shared.
  std::size_t Border(std::size_t part) const {
    if (part == ranks) return count;
    constexpr std::size_t kLine = 64 / sizeof(float);
    return count * part / ranks / kLine * kLine;
  }
};

template <bool kStreaming>
double Measure(const Job& job, int iterations) {
  Barrier(job.header, static_cast<std::uint32_t>(job.ranks));
  const double start = control_now();
  for (int i = 0; i < iterations; ++i) {
    Add<kStreaming>(job.arenas, job.ranks, job.begin(), job.end());
  }
  return (control_now() - start) / iterations;
}

/// Before each pass every process writes its whole arena, which is not timed.
template <bool kStreaming>
double MeasureFresh(const Job& job, int iterations) {
  double seconds = 0;
  for (int i = 0; i < iterations; ++i) {
    Barrier(job.header, static_cast<std::uint32_t>(job.ranks));
    std::fill_n(job.arenas[job.rank], job.count, static_cast<float>(i));
    seconds += Measure<kStreaming>(job, 1);
  }
  return seconds / iterations;
}

/// "allreduce|fresh|many <bytes> <tensors> <warm-up> <iterations>": many tensors are as many bytes.
void Run(const char* line, int control, Header& header, const Arenas& arenas, std::size_t rank,
         std::size_t ranks) {
  const Command command = ParseCommand(line);
  const std::size_t bytes = command.bytes * command.tensors;
  if (bytes > kMaxArenaBytes) Misunderstood(line);
  const Job job{header, arenas, rank, ranks, bytes / sizeof(float)};
  std::fill_n(arenas[rank], job.count, 0.0F);
  const bool fresh = command.operation == "fresh";
  const auto ordinary_stores = fresh ? MeasureFresh<false> : Measure<false>;
  const auto streaming_stores = fresh ? MeasureFresh<true> : Measure<true>;
  ordinary_stores(job, command.warm);
  const double ordinary = ordinary_stores(job, command.iterations);
  streaming_stores(job, command.warm);
  const double streaming = streaming_stores(job, command.iterations);
  char reply[kControlLineBytes];
  snprintf(reply, sizeof(reply), "ok %.9g %.9g\n", ordinary, streaming);
  control_send(control, reply);
}

}  // namespace
}  // namespace hvl::bench

/// limit <descriptor> <rank> <ranks> <processor>
int main(int argc, char** argv) {
  using namespace hvl::bench;  // NOLINT(google-build-using-namespace)
  if (argc != 5) Misunderstood(argv[0]);
  const int fd = ParseInt(argv[1]);
  const auto rank = static_cast<std::size_t>(ParseInt(argv[2]));
  const auto ranks = static_cast<std::size_t>(ParseInt(argv[3]));
  PinTo(ParseInt(argv[4]));
  if (ranks > kMaxRanks || rank >= ranks) Misunderstood(argv[3]);
  // Every process makes the file as long as all need; the pages come with their first use.
  if (ftruncate(fd, static_cast<off_t>(kHeaderBytes + ranks * kMaxArenaBytes)) != 0) {
    control_die("cannot size shared memory");
  }
  char* base = ReserveAddresses(kHeaderBytes + ranks * kArenaStride);
  auto* header = static_cast<Header*>(MapAt(base, kHeaderBytes, fd, 0));
  Arenas arenas{};
  for (std::size_t i = 0; i < ranks; ++i) {
    arenas[i] = static_cast<float*>(MapAt(base + kHeaderBytes + i * kArenaStride, kMaxArenaBytes,
                                          fd, kHeaderBytes + i * kMaxArenaBytes));
  }
  const int control = control_connect(static_cast<int>(rank));
  char line[kControlLineBytes];
  while (control_next(control, line)) Run(line, control, *header, arenas, rank, ranks);
  return 0;
}
