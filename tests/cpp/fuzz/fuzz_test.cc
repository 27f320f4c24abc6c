// Every target for a moment; HVL_TEST_SECONDS says for how long in all. `hvl_fuzz` is the tool.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>
#include <string>

#include "tests/cpp/fuzz/driver.h"
#include "tests/cpp/fuzz/mutate.h"
#include "tests/cpp/fuzz/targets.h"

namespace hvl::fuzz {
namespace {

TEST_CASE("whatever bytes come, nothing breaks") {
  const char* const text = std::getenv("HVL_TEST_SECONDS");
  DriveOptions options;
  options.time = std::chrono::duration<double>(text == nullptr ? 2.0 : std::stod(text));
  options.seed = std::random_device()();
  const std::string report = Drive(options);
  CHECK(std::count(report.begin(), report.end(), '\n') ==
        static_cast<std::ptrdiff_t>(Targets().size()));
  WARN(report);
}

TEST_CASE("the inputs to start from are accepted as they are") {
  for (const Target& target : Targets()) {
    INFO(target.name);
    const auto corpus = target.corpus(1);
    CHECK(corpus.size() >= 10);
    for (const Input& input : corpus) target.run(input);
    CHECK(corpus == target.corpus(1));
  }
}

TEST_CASE("an input is the same for the same seed and iteration, and others differ") {
  const auto corpus = Targets().front().corpus(1);
  CHECK(MakeInput(corpus, 5, 7) == MakeInput(corpus, 5, 7));
  int changed = 0;
  for (std::uint64_t i = 0; i < 100; ++i) {
    if (std::find(corpus.begin(), corpus.end(), MakeInput(corpus, 5, i)) == corpus.end()) ++changed;
  }
  CHECK(changed > 60);
}

TEST_CASE("there is no target of another name") {
  DriveOptions options;
  options.target = "nothing";
  CHECK(Drive(options).empty());
}

}  // namespace
}  // namespace hvl::fuzz
