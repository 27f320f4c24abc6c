// --config-file: what each key stands for, and what the refusals say.
#include "launcher/config_file.h"

#include <catch2/catch.hpp>

#include <algorithm>

namespace hvl::launcher {
namespace {

using Words = std::vector<std::string>;

FileSettings FileOk(const std::string& text, const Words& given = {}) {
  Result<FileSettings> settings = ParseConfigFile(text, "job.yaml", given);
  INFO(settings.status().ToString());
  REQUIRE(settings.ok());
  return *std::move(settings);
}

Status FileStatus(const std::string& text, const Words& given = {}) {
  const Result<FileSettings> settings = ParseConfigFile(text, "job.yaml", given);
  REQUIRE_FALSE(settings.ok());
  CHECK(settings.status().message().find('\n') == std::string::npos);
  return settings.status();
}

std::string FileError(const std::string& text) { return FileStatus(text).message(); }

bool Sets(const FileSettings& file, const EnvSetting& wanted) {
  return std::any_of(file.knobs.begin(), file.knobs.end(), [&wanted](const auto& knob) {
    return std::find(knob.begin(), knob.end(), wanted) != knob.end();
  });
}

TEST_CASE("every key of a file for horovodrun is understood") {
  const FileSettings file = FileOk(R"(# all of them
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: true
  torus_allreduce: false
autotune:
  enabled: true
  log_file: 'autotune log.txt'
  warmup_samples: 5
  steps_per_sample: 20
  bayes_opt_max_samples: 50
  gaussian_process_noise: 0.9
timeline:
  filename: 'a timeline.json'
  mark_cycles: true
stall_check:
  enabled: false
  warning_time_seconds: 120
  shutdown_time_seconds: 240
library_options:
  mpi_threads_disable: true
  mpi_args: "-x A"
  tcp: no
  binding_args: --bind-to none
  num_nccl_streams: 2
  thread_affinity: 0,1
  gloo_timeout_seconds: 60
logging:
  level: INFO
  with_timestamp: false
)");
  for (const EnvSetting& wanted :
       std::vector<EnvSetting>{{"HVL_FUSION_THRESHOLD", "33554432"},
                               {"HOROVOD_FUSION_THRESHOLD", "33554432"},
                               {"HOROVOD_CYCLE_TIME", "10"},
                               {"HVL_CACHE_CAPACITY", "2048"},
                               {"HVL_AUTOTUNE", "1"},
                               {"HVL_AUTOTUNE_LOG", "autotune log.txt"},
                               {"HVL_AUTOTUNE_STEPS_PER_SAMPLE", "20"},
                               {"HVL_AUTOTUNE_MAX_SAMPLES", "50"},
                               {"HOROVOD_TIMELINE", "a timeline.json"},
                               {"HVL_TIMELINE_MARK_CYCLES", "1"},
                               {"HVL_STALL_CHECK_DISABLE", "1"},
                               {"HVL_STALL_CHECK_TIME_SECONDS", "120"},
                               {"HVL_STALL_SHUTDOWN_TIME_SECONDS", "240"},
                               {"HVL_THREAD_AFFINITY", "0,1"},
                               {"HVL_LOG_LEVEL", "INFO"},
                               {"HVL_LOG_HIDE_TIME", "1"}}) {
    INFO(wanted.name);
    CHECK(Sets(file, wanted));
  }
  CHECK(file.warnings.size() == 5);
  CHECK(file.mpi.warnings.size() == 3);
  CHECK(file.warnings.front() ==
        "job.yaml:7: params.hierarchical_allreduce has no effect: the levels of a reduction follow "
        "from where the ranks are");
}

TEST_CASE("switches have every spelling of YAML, and some keys mean the opposite") {
  for (const char* on : {"true", "True", "yes", "on", "1"}) {
    CHECK(Sets(FileOk(std::string("timeline: {mark_cycles: ") + on + "}"),
               {"HVL_TIMELINE_MARK_CYCLES", "1"}));
    CHECK(Sets(FileOk(std::string("stall_check: {enabled: ") + on + "}"),
               {"HVL_STALL_CHECK_DISABLE", "0"}));
  }
  CHECK(Sets(FileOk("logging: {hide_timestamp: off}"), {"HVL_LOG_HIDE_TIME", "0"}));
  CHECK(FileError("timeline:\n  mark_cycles: maybe\n") ==
        "job.yaml:2: timeline.mark_cycles: 'maybe' is not valid: expected true or false");
}

TEST_CASE("what is switched off or left empty says nothing") {
  CHECK(FileOk("").knobs.empty());
  CHECK(FileOk("# nothing\n").knobs.empty());
  const FileSettings file = FileOk(
      "autotune:\n  log_file:\nparams:\n  torus_allreduce: no\n"
      "  cache_capacity: ~\ntimeline:\n");
  CHECK(file.knobs.empty());
  CHECK(file.warnings.empty());
}

TEST_CASE("an unknown key is refused with its line and the nearest key") {
  CHECK(FileError("params:\n  fusion_treshold_mb: 3\n") ==
        "job.yaml:2: unknown key params.fusion_treshold_mb; did you mean "
        "params.fusion_threshold_mb?");
  CHECK(FileError("param:\n  cache_capacity: 3\n") ==
        "job.yaml:1: unknown key param; did you mean params?");
  CHECK(FileError("timeline:\n  cache_capacity: 3\n") ==
        "job.yaml:2: unknown key timeline.cache_capacity; did you mean params.cache_capacity?");
  CHECK(FileError("cache_capacity: 3\n") ==
        "job.yaml:1: unknown key cache_capacity; did you mean params.cache_capacity?");
  CHECK(FileError("controler: gloo\n") ==
        "job.yaml:1: unknown key controler; did you mean controller?");
  CHECK(FileError("something: else\n") ==
        "job.yaml:1: unknown key something; docs/launcher.md lists all");
}

TEST_CASE("a value that its option would not take is refused with key and line") {
  CHECK(FileError("params:\n  cache_capacity: many\n") ==
        "job.yaml:2: params.cache_capacity: --cache-capacity many: expected an integer from 0 to "
        "16777216");
  CHECK_THAT(FileError("params: {fusion_threshold_mb: -1}"), Catch::Contains("MiB"));
  CHECK_THAT(FileError("logging: {level: LOUD}"), Catch::Contains("trace, debug"));
  CHECK(FileError("autotune:\n  gaussian_process_noise: 1.5\n") ==
        "job.yaml:2: autotune.gaussian_process_noise '1.5' is not valid: expected a number from 0 "
        "to 1");
  CHECK_THAT(FileError("library_options: {num_nccl_streams: -1}"),
             Catch::Contains("expected an integer from 0 on"));
  CHECK(FileError("timeline:\n  filename: [a, b]\n") ==
        "job.yaml:2: timeline.filename needs one value");
}

TEST_CASE("what is no file of keys is refused with the line") {
  CHECK_THAT(FileError("params: [\n"), Catch::StartsWith("job.yaml:"));
  CHECK_THAT(FileError("params: [\n"), Catch::Contains("not valid YAML"));
  CHECK_THAT(FileError("a: b: c\n"), Catch::Contains("job.yaml:1: not valid YAML"));
  CHECK(FileError("- a\n- b\n") ==
        "job.yaml:1: the file has no keys: expected lines like 'name: value'");
  CHECK(FileError("params: 3\n") ==
        "job.yaml:1: params has no keys: expected lines like 'name: value'");
  CHECK(FileError("? [a]\n: 1\n") == "job.yaml:1: a key must be a name");
  CHECK(FileError("a: 1\n---\nb: 2\n") ==
        "job.yaml:2: another document begins here; one is expected");
  CHECK(FileError("- 1\n, 2\n") == "job.yaml:2: another document begins here; one is expected");
  CHECK_THAT(FileError("params: &a {cache_capacity: *b}\n"), Catch::StartsWith("job.yaml:1: "));
  CHECK_THAT(FileError(std::string(100000, '[')), Catch::StartsWith("job.yaml:"));
}

TEST_CASE("a key that is there twice is refused, not decided by its place") {
  CHECK(FileError("params:\n  cache_capacity: 1\n  cache_capacity: 2\n") ==
        "job.yaml:3: params.cache_capacity is there twice");
  CHECK(FileError("params: {cache_capacity: 1}\nparams: {cycle_time_ms: 1}\n") ==
        "job.yaml:2: params is there twice");
}

TEST_CASE("the controller is the one that there is, unless the command line says so anyway") {
  CHECK(FileOk("controller: gloo").warnings.empty());
  const Status status = FileStatus("controller: jsrun");
  CHECK(status.code() == StatusCode::kNotSupported);
  CHECK_THAT(status.message(),
             Catch::StartsWith("job.yaml:1: controller: jsrun is not supported yet"));
  for (const char* given : {"--gloo", "--mpi"}) FileOk("controller: jsrun", {given});
  CHECK(FileOk("controller: mpi").mpi.wanted);
  CHECK_FALSE(FileOk("controller: mpi", {"--gloo"}).mpi.wanted);
}

TEST_CASE("what MPI uses is taken from the file, unless the command line has it") {
  const std::string text =
      "library_options: {mpi_args: --mca a b, binding_args: --bind-to core, tcp: true,\n"
      "                  mpi_threads_disable: true}";
  const FileSettings file = FileOk(text);
  CHECK(file.mpi.args == "--mca a b");
  CHECK(file.mpi.binding_args == "--bind-to core");
  CHECK(file.mpi.tcp);
  CHECK(file.mpi.threads_disable);
  CHECK(file.mpi.warnings.size() == 4);
  CHECK_THAT(file.mpi.warnings[0],
             Catch::StartsWith("job.yaml:1: library_options.mpi_args has no effect: "));
  const FileSettings beside = FileOk(text, {"--mpi-args", "--tcp"});
  CHECK(beside.mpi.args.empty());
  CHECK_FALSE(beside.mpi.tcp);
  CHECK(beside.mpi.warnings.size() == 2);
  const FileSettings off = FileOk("library_options: {mpi_args: \"\", tcp: false}");
  CHECK(off.mpi.warnings.empty());
  CHECK(FileError("controller: nccl") ==
        "job.yaml:1: controller: 'nccl' is not valid: expected gloo, mpi or jsrun");
}

TEST_CASE("the command line has said it already: a key without effect is not warned about again") {
  CHECK(FileOk("params: {torus_allreduce: true}", {"--torus-allreduce"}).warnings.empty());
  CHECK(FileOk("params: {torus_allreduce: true}", {"--tcp"}).warnings.size() == 1);
}

}  // namespace
}  // namespace hvl::launcher
