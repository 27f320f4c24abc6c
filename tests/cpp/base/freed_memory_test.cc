#include "csrc/base/freed_memory.h"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

namespace hvl {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSystemAllocator = false;
#else
constexpr bool kSystemAllocator = true;
#endif

long PageFaults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// As a backward pass: blocks that are written and freed in turn, and some that live longer.
void AllocateAndFree() {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < 16; ++i) {
    blocks.emplace_back(new char[kBytes]);
    std::memset(blocks.back().get(), i, kBytes);
  }
  while (!blocks.empty()) blocks.pop_back();
}

TEST_CASE("memory that was freed is there again without page faults") {
  if (!kSystemAllocator) {
    WARN("skipped: a sanitizer brings its own allocator");
    SUCCEED();
    return;
  }
  KeepFreedMemory(std::size_t{128} << 20);
  KeepFreedMemory(1);  // nothing less than before
  AllocateAndFree();
  const long before = PageFaults();
  for (int i = 0; i < 4; ++i) AllocateAndFree();
  CHECK(PageFaults() - before < 100);  // 65,536 pages are written
}

}  // namespace
}  // namespace hvl
