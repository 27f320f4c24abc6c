// hvl_fuzz: arbitrary bytes for everything that reads bytes of others.
#include <charconv>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>

#include "csrc/base/str.h"
#include "tests/cpp/fuzz/driver.h"
#include "tests/cpp/fuzz/targets.h"

namespace hvl::fuzz {
namespace {

int Usage() {
  std::string names;
  for (const Target& target : Targets()) names += Format(" {}", target.name);
  std::fputs(Format("usage: hvl_fuzz [--seconds N] [--seed S] [--target T] [--iteration I]\n"
                    "  --seconds N    how long (60)\n"
                    "  --seed S       where to begin (default: random)\n"
                    "  --target T     one of:{} (default: all, in turn)\n"
                    "  --iteration I  the number of the first input, to run one again\n",
                    names)
                 .c_str(),
             stderr);
  return 2;
}

template <typename Number>
bool Parse(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

int Main(int argc, char** argv) {
  DriveOptions options;
  options.seed = std::random_device()();
  double seconds = 60;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return Usage();
    const std::string_view name = argv[i];
    const std::string_view value = argv[i + 1];
    bool good = false;
    if (name == "--seconds") good = Parse(value, seconds);
    if (name == "--seed") good = Parse(value, options.seed);
    if (name == "--iteration") good = Parse(value, options.first_iteration);
    if (name == "--target") good = !(options.target = value).empty();
    if (!good) return Usage();
  }
  options.time = std::chrono::duration<double>(seconds);
  const std::string text = Drive(options);
  if (text.empty()) return Usage();
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace hvl::fuzz

int main(int argc, char** argv) { return hvl::fuzz::Main(argc, argv); }
