// Warnings about names: misspelt ones, and Horovod's that have no effect.
#include "csrc/config/env_names.h"

#include <algorithm>
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
                                    "HOROVOD_HOSTNAME",
                                    "HOROVOD_DYNAMIC_PROCESS_SETS"};  // it is so anyway
  for (const KnobInfo& knob : AllKnobs()) {
    names.emplace_back(knob.env_name);
    const bool silent = !knob.alias.empty() && knob.alias != "HOROVOD_CYCLE_TIME";
    if (silent) names.emplace_back(knob.alias);
  }
  CHECK(NameWarnings(names) == std::vector<std::string>{});
}

TEST_CASE("a Horovod name without effect says why, once") {
  const std::map<std::string, std::string, std::less<>> variables = {
      {"HOROVOD_ENABLE_XLA_OPS", "1"}};
  std::vector<std::string> warnings;
  const auto config = Config::Parse(MapEnv(variables), &warnings);
  REQUIRE(config.ok());
  CHECK(warnings == std::vector<std::string>{
                        "HOROVOD_ENABLE_XLA_OPS has no effect: TensorFlow is not supported"});
}

TEST_CASE("names of other parts of Horovod are known by their beginning or as a whole") {
  CHECK(NameWarnings({"HOROVOD_SPARK_WORK_DIR", "_HOROVOD_SECRET_KEY", "_HOROVOD_OTHER"}) ==
        std::vector<std::string>{"HOROVOD_SPARK_WORK_DIR has no effect: Spark is not supported",
                                 "_HOROVOD_SECRET_KEY has no effect: hvlrun hands the job's secret "
                                 "to the ranks in HVL_SECRET_FD"});
}

TEST_CASE("a Horovod variable that asks for what is not so is warned about by its value") {
  const auto warned = [](const std::map<std::string, std::string, std::less<>>& variables) {
    std::vector<std::string> warnings;
    REQUIRE(Config::Parse(MapEnv(variables), &warnings).ok());
    return warnings;
  };
  for (const std::string off : {"0", "false", "nonsense"}) {
    CHECK(warned({{"HOROVOD_DYNAMIC_PROCESS_SETS", off}}) ==
          std::vector<std::string>{"HOROVOD_DYNAMIC_PROCESS_SETS='" + off +
                                   "' has no effect: process sets come and go at any time"});
  }
  CHECK(warned({{"HOROVOD_DYNAMIC_PROCESS_SETS", "1"}}).empty());
  CHECK(warned({{"HOROVOD_HOSTNAME", "node1"}}) ==
        std::vector<std::string>{"HOROVOD_HOSTNAME='node1' has no effect: which ranks share a host "
                                 "follows from HVL_LOCAL_RANK and HVL_LOCAL_SIZE"});
  CHECK(warned({{"HOROVOD_HOSTNAME", "node1"}, {"HVL_STORE", "unix:@job"}}).empty());
}

// Horovod's documentation of its variables, without those of its build and its tests.
TEST_CASE("every variable that Horovod reads is an alias of a knob or known to have no effect") {
  for (const std::string name : {"RANK",
                                 "SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_SIZE",
                                 "CROSS_RANK",
                                 "CROSS_SIZE",
                                 "HOSTNAME",
                                 "GLOO_RENDEZVOUS_ADDR",
                                 "GLOO_RENDEZVOUS_PORT",
                                 "GLOO_IFACE",
                                 "GLOO_TIMEOUT_SECONDS",
                                 "CONTROLLER",
                                 "CPU_OPERATIONS",
                                 "FUSION_THRESHOLD",
                                 "CYCLE_TIME",
                                 "CACHE_CAPACITY",
                                 "BATCH_D2D_MEMCOPIES",
                                 "NUM_NCCL_STREAMS",
                                 "DISABLE_GROUP_FUSION",
                                 "ENABLE_ASYNC_COMPLETION",
                                 "DYNAMIC_PROCESS_SETS",
                                 "HIERARCHICAL_ALLREDUCE",
                                 "HIERARCHICAL_ALLGATHER",
                                 "TORUS_ALLREDUCE",
                                 "ELASTIC",
                                 "ELASTIC_TIMEOUT",
                                 "START_TIMEOUT",
                                 "TIMELINE",
                                 "TIMELINE_MARK_CYCLES",
                                 "STALL_CHECK_DISABLE",
                                 "STALL_CHECK_TIME_SECONDS",
                                 "STALL_SHUTDOWN_TIME_SECONDS",
                                 "AUTOTUNE",
                                 "AUTOTUNE_LOG",
                                 "AUTOTUNE_WARMUP_SAMPLES",
                                 "AUTOTUNE_STEPS_PER_SAMPLE",
                                 "AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
                                 "AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
                                 "LOG_LEVEL",
                                 "LOG_HIDE_TIME",
                                 "THREAD_AFFINITY",
                                 "DISABLE_NVTX_RANGES",
                                 "ENABLE_XLA_OPS",
                                 "MPI_THREADS_DISABLE",
                                 "ADASUM_MPI_CHUNK_SIZE",
                                 "CCL_CACHE",
                                 "SPARK_PYTHONPATH"}) {
    const std::string full = "HOROVOD_" + name;
    INFO(full);
    const auto knobs = AllKnobs();
    const bool alias = std::any_of(knobs.begin(), knobs.end(),
                                   [&full](const KnobInfo& knob) { return knob.alias == full; });
    const std::size_t by_value = ValueWarnings(MapEnv({{full, "0"}})).size();
    CHECK((alias || by_value + NameWarnings({full}).size() == 1));
  }
}

TEST_CASE("a near miss of a Horovod alias is answered, a far one may be Horovod's own") {
  CHECK(NameWarnings({"HOROVOD_CACHE_CAPACTIY"}) ==
        std::vector<std::string>{"HOROVOD_CACHE_CAPACTIY is set, but has no effect; did you mean "
                                 "HOROVOD_CACHE_CAPACITY?"});
  CHECK(NameWarnings({"HOROVOD_SOMETHING_ELSE"}).empty());
}

}  // namespace
}  // namespace hvl::config
