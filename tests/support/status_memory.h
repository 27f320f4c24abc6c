// A status page as a launcher makes it, for tests of those who write and read it.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>

#include "csrc/base/status_page.h"

namespace hvl::test {

class StatusMemory {
 public:
  explicit StatusMemory(int seals = StatusPageSeals(), std::size_t bytes = kStatusPageBytes)
      : fd_(::memfd_create("page", MFD_ALLOW_SEALING)) {
    REQUIRE(::ftruncate(fd_, static_cast<off_t>(bytes)) == 0);
    REQUIRE(::fcntl(fd_, F_ADD_SEALS, seals) == 0);
    memory_ = ::mmap(nullptr, kStatusPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    REQUIRE(memory_ != MAP_FAILED);
    if (bytes >= kStatusPageBytes) MakeStatusPage(memory_);
  }
  ~StatusMemory() {
    ::munmap(memory_, kStatusPageBytes);
    ::close(fd_);
  }
  StatusMemory(const StatusMemory&) = delete;
  StatusMemory& operator=(const StatusMemory&) = delete;

  /// What a rank inherits.
  int fd() const { return fd_; }
  void* memory() const { return memory_; }
  StatusReport Read(TimePoint now) const { return ReadStatusPage(memory_, now); }
  StatusReport ReadNow() const { return Read(SteadyClock().Now()); }

 private:
  int fd_;
  void* memory_ = nullptr;
};

}  // namespace hvl::test
