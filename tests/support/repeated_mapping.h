// More than 2^31 bytes of address space over a few MiB of memory, for tests of large counts.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "csrc/base/check.h"

namespace hvl::test {

/// One window of memory, mapped again and again, and a last part of its own. What is done to it
/// must bear being done many times.
class RepeatedMapping {
 public:
  static constexpr std::size_t kWindow = std::size_t{16} << 20;
  static constexpr std::size_t kRepeats = 129;  // 2^31 + 2^24 bytes
  static constexpr std::size_t kTail = 4096;
  static constexpr std::size_t kBytes = kWindow * kRepeats + kTail;

  RepeatedMapping() {
    const int fd = ::memfd_create("repeated", MFD_CLOEXEC);
    HVL_CHECK(fd >= 0 && ::ftruncate(fd, kWindow + kTail) == 0);
    void* const reserved =
        ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    HVL_CHECK(reserved != MAP_FAILED);
    base_ = static_cast<std::byte*>(reserved);
    for (std::size_t i = 0; i < kRepeats; ++i) MapAt(i * kWindow, kWindow, fd, 0);
    MapAt(kRepeats * kWindow, kTail, fd, kWindow);
    ::close(fd);
  }
  ~RepeatedMapping() { ::munmap(base_, kBytes); }
  RepeatedMapping(const RepeatedMapping&) = delete;
  RepeatedMapping& operator=(const RepeatedMapping&) = delete;

  std::byte* data() { return base_; }
  std::byte* tail() { return base_ + kRepeats * kWindow; }
  void Fill(std::byte value) {
    std::fill_n(data(), kWindow, value);
    std::fill_n(tail(), kTail, value);
  }

 private:
  void MapAt(std::size_t offset, std::size_t bytes, int fd, std::size_t file_offset) {
    void* const mapped = ::mmap(base_ + offset, bytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(file_offset));
    HVL_CHECK(mapped != MAP_FAILED);
  }
  std::byte* base_ = nullptr;
};

}  // namespace hvl::test
