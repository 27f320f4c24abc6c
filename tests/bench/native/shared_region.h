// Memory shared by the processes of a benchmark: a descriptor inherited from tests/bench, mapped at
// an address that is chosen.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "tests/bench/native/control.h"

namespace hvl::bench {

// Addresses that agree in their low 28 bits are one line for the way predictor of AMD's caches, and
// then every access misses: what is read together must not lie a multiple of this apart.
inline constexpr std::size_t kAliasBytes = std::size_t{1} << 28;

/// `bytes` of address space at a multiple of kAliasBytes, with nothing behind it.
inline char* ReserveAddresses(std::size_t bytes) {
  void* start = mmap(nullptr, bytes + kAliasBytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) control_die("cannot reserve addresses");
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  return static_cast<char*>(start) + (kAliasBytes - address % kAliasBytes) % kAliasBytes;
}

/// Maps `bytes` of the file from `offset` on at `address`, which must be reserved.
inline void* MapAt(char* address, std::size_t bytes, int fd, std::size_t offset) {
  void* mapped = mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                      static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) control_die("cannot map shared memory");
  return mapped;
}

inline void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) control_die("cannot pin to a processor");
}

}  // namespace hvl::bench
