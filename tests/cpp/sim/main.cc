// hvl_sim: the negotiation of whole worlds, simulated from seeds.
#include <charconv>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>
#include <system_error>

#include "csrc/base/str.h"
#include "tests/cpp/sim/runner.h"

namespace hvl::sim {
namespace {

constexpr const char* kHelp =
    "usage: hvl_sim [--seeds N] [--seed S] [--ranks R] [--verbose]\n"
    "  --seeds N   how many seeds to run (2000)\n"
    "  --seed S    the first one (default: random)\n"
    "  --ranks R   size of every world, 2 to 4096 (default: drawn from the seed)\n"
    "  --verbose   show the last events of each seed\n";

struct Arguments {
  std::uint64_t seeds = 2000;
  std::uint64_t seed = std::random_device()();
  std::uint64_t ranks = 0;
  bool verbose = false;
};

bool Parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--verbose") {
      arguments.verbose = true;
      continue;
    }
    std::uint64_t* const value = name == "--seeds"   ? &arguments.seeds
                                 : name == "--seed"  ? &arguments.seed
                                 : name == "--ranks" ? &arguments.ranks
                                                     : nullptr;
    if (value == nullptr || ++i == argc) return false;
    const std::string_view text = argv[i];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    if (error != std::errc() || end != text.data() + text.size()) return false;
  }
  return arguments.ranks != 1 && arguments.ranks <= 4096;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, arguments)) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  const int ranks = static_cast<int>(arguments.ranks);
  if (arguments.verbose) {
    for (std::uint64_t i = 0; i < arguments.seeds; ++i) {
      std::puts(ExplainSeed(arguments.seed + i, ranks, plan::Planner::Create).c_str());
    }
  }
  std::puts(Format("seeds {} to {}", arguments.seed, arguments.seed + arguments.seeds - 1).c_str());
  const Report report = RunSeeds(arguments.seed, arguments.seeds, ranks, plan::Planner::Create);
  if (report.failing_seed) {
    std::puts(report.text.c_str());
    return 1;
  }
  std::puts(report.statistics.ToString().c_str());
  return 0;
}

}  // namespace
}  // namespace hvl::sim

int main(int argc, char** argv) { return hvl::sim::Main(argc, argv); }
