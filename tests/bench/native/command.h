// The words that the C++ programs of the benchmarks are told: arguments and commands.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

#include "tests/bench/native/control.h"

namespace hvl::bench {

[[noreturn]] inline void Misunderstood(std::string_view text) {
  fprintf(stderr, "'%s' is not understood; this program is started by tests/dev bench\n",
          std::string(text).c_str());
  exit(2);
}

inline int ParseInt(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) Misunderstood(text);
  return value;
}

/// "<operation> <bytes> <tensors> <warm-up iterations> <timed iterations>"
struct Command {
  std::string operation;
  std::size_t bytes = 0, tensors = 0;
  int warm = 0, iterations = 0;
};

inline Command ParseCommand(const std::string& line) {
  Command command;
  std::istringstream words(line);
  words >> command.operation >> command.bytes >> command.tensors >> command.warm >>
      command.iterations;
  if (!words) Misunderstood(line);
  return command;
}

}  // namespace hvl::bench
