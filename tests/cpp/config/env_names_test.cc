// Warnings about names: misspelt ones, and Horovod's that have no effect.
#include "csrc/config/env_names.h"

#include <catch2/catch.hpp>

#include "csrc/config/config.h"

namespace hvl::config {
namespace {

TEST_CASE("edit distance counts insertions, deletions, replacements and swaps") {
  CHECK(EditDistance("", "") == 0);
  CHECK(EditDistance("", "abc") == 3);
  CHECK(EditDistance("abc", "") == 3);
  CHECK(EditDistance("abc", "abc") == 0);
  CHECK(EditDistance("abc", "acb") == 1);
  CHECK(EditDistance("abc", "abd") == 1);
  CHECK(EditDistance("abc", "xabc") == 1);
  CHECK(EditDistance("kitten", "sitting") == 3);
}

TEST_CASE("a misspelt HVL name is answered with the nearest knob") {
  const auto warnings =
      NameWarnings({"HVL_FUSION_TRESHOLD", "HVL_LOGLEVEL", "HVL_STALL_CHECK_TIME"});
  CHECK(warnings ==
        std::vector<std::string>{
            "HVL_FUSION_TRESHOLD is set, but no knob has this name; did you mean "
            "HVL_FUSION_THRESHOLD?",
            "HVL_LOGLEVEL is set, but no knob has this name; did you mean HVL_LOG_LEVEL?",
            "HVL_STALL_CHECK_TIME is set, but no knob has this name; did you mean "
            "HVL_STALL_CHECK_TIME_SECONDS?"});
}

TEST_CASE("a name far from every knob gets no misleading guess") {
  const auto warnings = NameWarnings({"HVL_PURPLE"});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] == "HVL_PURPLE is set, but no knob has this name; it has no effect");
}

TEST_CASE("knobs, reserved names and other people's names pass silently") {
  std::vector<std::string> names = {"HVL_TEST_SEED",
                                    "HVL_BENCH_ROUNDS",
                                    "HVL_BUILD_JOBS",
                                    "HVL_RUN_FD",
                                    "PATH",
                                    "HVLX",
                                    "MY_HVL_RANK",
                                    "HOROVOD_WITH_PYTORCH",
                                    "HOROVOD_GPU_OPERATIONS",
                                    "HOROVOD_HOSTNAME"};
  for (const KnobInfo& knob : AllKnobs()) {
    names.emplace_back(knob.env_name);
    if (!knob.alias.empty()) names.emplace_back(knob.alias);
  }
  CHECK(NameWarnings(names) == std::vector<std::string>{});
}

TEST_CASE("a Horovod name without effect says why, once") {
  const std::map<std::string, std::string, std::less<>> variables = {{"HOROVOD_AUTOTUNE", "1"}};
  std::vector<std::string> warnings;
  const auto config = Config::Parse(MapEnv(variables), &warnings);
  REQUIRE(config.ok());
  CHECK(warnings == std::vector<std::string>{
                        "HOROVOD_AUTOTUNE has no effect: there is no autotuner; fusion adapts by "
                        "itself"});
}

TEST_CASE("a near miss of a Horovod alias is answered, a far one may be Horovod's own") {
  CHECK(NameWarnings({"HOROVOD_CACHE_CAPACTIY"}) ==
        std::vector<std::string>{"HOROVOD_CACHE_CAPACTIY is set, but has no effect; did you mean "
                                 "HOROVOD_CACHE_CAPACITY?"});
  CHECK(NameWarnings({"HOROVOD_SOMETHING_ELSE"}).empty());
}

}  // namespace
}  // namespace hvl::config
