// The entry that libFuzzer calls (clang++ -fsanitize=fuzzer, without main.cc): the first byte
// chooses the target. The driver of this folder goes through it as well.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/cpp/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto targets = hvl::fuzz::Targets();
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  targets[data[0] % targets.size()].run(input.subspan(1));
  return 0;
}
