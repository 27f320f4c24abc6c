// What this process uses of the machine, for tests that look for leaks and for idle work.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace hvl::test {

struct ProcessUsage {
  std::size_t threads = 0, descriptors = 0, resident_bytes = 0;

  static ProcessUsage Now() {
    const auto count = [](const char* directory) {
      return static_cast<std::size_t>(
          std::distance(std::filesystem::directory_iterator(directory), {}));
    };
    std::size_t pages = 0, resident_pages = 0;
    std::ifstream("/proc/self/statm") >> pages >> resident_pages;
    return {count("/proc/self/task"), count("/proc/self/fd"),
            resident_pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))};
  }
};

/// User and system time of all threads of this process.
inline double ProcessCpuSeconds() {
  std::timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace hvl::test
