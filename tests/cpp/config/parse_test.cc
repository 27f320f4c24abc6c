// Config::Parse: what is accepted, what is refused, and what the refusal says.
#include <catch2/catch.hpp>
#include <set>

#include "csrc/base/str.h"
#include "csrc/config/config.h"

namespace hvl::config {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

Config ParseOk(const Variables& variables, std::vector<std::string>* warnings = nullptr) {
  Result<Config> config = Config::Parse(MapEnv(variables), warnings);
  INFO(config.status().ToString());
  REQUIRE(config.ok());
  return *config;
}

std::string ParseError(const Variables& variables) {
  const Result<Config> config = Config::Parse(MapEnv(variables), nullptr);
  REQUIRE_FALSE(config.ok());
  CHECK(config.status().code() == StatusCode::kInvalidArgument);
  return config.status().message();
}

TEST_CASE("an empty environment gives the defaults, a world of one and no warning") {
  std::vector<std::string> warnings = {"left over"};
  const Config config = ParseOk({}, &warnings);
  CHECK(warnings.empty());
  CHECK(config.rank == 0);
  CHECK(config.size == 1);
  CHECK(config.local_size == 1);
  CHECK(config.fusion_threshold_bytes == 128 << 20);
  CHECK(config.reproducible);
  CHECK(config.log_level == LogLevel::kWarning);
  CHECK(config.cpu_operations == CpuOperations::kAuto);
}

TEST_CASE("every default lies inside its own limits and parses back to itself") {
  const Config defaults;
  for (const KnobInfo& knob : AllKnobs()) {
    INFO(knob.env_name);
    const bool identity = knob.env_name.ends_with("_RANK") || knob.env_name.ends_with("_SIZE");
    if (identity || knob.default_text.empty()) continue;
    const Config parsed = ParseOk({{std::string(knob.env_name), knob.default_text}});
    CHECK(KnobText(parsed, knob.env_name) == KnobText(defaults, knob.env_name));
    CHECK(KnobText(defaults, knob.env_name) == knob.default_text);
  }
}

TEST_CASE("names, aliases and flags are unique") {
  std::set<std::string_view> seen;
  for (const KnobInfo& knob : AllKnobs()) {
    for (const std::string_view name : {knob.env_name, knob.alias, knob.flag}) {
      if (name.empty()) continue;
      INFO(name);
      CHECK(seen.insert(name).second);
    }
    CHECK(knob.help.ends_with('.'));
    CHECK_FALSE(knob.range_text.empty());
  }
}

TEST_CASE("a value followed by junk is an error naming knob, value, range and default") {
  const std::string message = ParseError({{"HVL_CACHE_CAPACITY", "12abc"}});
  CHECK(message ==
        "HVL_CACHE_CAPACITY='12abc' is not valid: expected an integer from 0 to 16777216; "
        "the default is 65536");
}

TEST_CASE("a bad value is reported under the name that the user wrote") {
  CHECK_THAT(ParseError({{"HOROVOD_CYCLE_TIME", "(None,)"}}),
             Catch::StartsWith("HOROVOD_CYCLE_TIME='(None,)' is not valid"));
}

TEST_CASE("malformed and out-of-range values of every kind are refused") {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"HVL_CACHE_CAPACITY", " 1"},       {"HVL_CACHE_CAPACITY", "1 "},
      {"HVL_CACHE_CAPACITY", "+1"},       {"HVL_CACHE_CAPACITY", "0x10"},
      {"HVL_CACHE_CAPACITY", "1.5"},      {"HVL_CACHE_CAPACITY", "-1"},
      {"HVL_CACHE_CAPACITY", "16777217"}, {"HVL_CACHE_CAPACITY", "99999999999999999999"},
      {"HVL_FUSION_THRESHOLD", "MiB"},    {"HVL_FUSION_THRESHOLD", "1 MiB"},
      {"HVL_FUSION_THRESHOLD", "1MB"},    {"HVL_FUSION_THRESHOLD", "17GiB"},
      {"HVL_FUSION_THRESHOLD", "-1MiB"},  {"HVL_FUSION_THRESHOLD", "9223372036854775807GiB"},
      {"HVL_START_TIMEOUT", "0"},         {"HVL_START_TIMEOUT", "nan"},
      {"HVL_START_TIMEOUT", "inf"},       {"HVL_START_TIMEOUT", "1e9"},
      {"HVL_START_TIMEOUT", "30s"},       {"HVL_SPIN", "-0.5"},
      {"HVL_REPRODUCIBLE", "2"},          {"HVL_REPRODUCIBLE", "ja"},
      {"HVL_LOG_LEVEL", "loud"},          {"HVL_LOG_LEVEL", "2"},
      {"HVL_CPU_OPERATIONS", "gloo"},     {"HVL_JOB_ID", std::string(65, 'x')},
  };
  for (const auto& [name, value] : bad) {
    INFO(name << "='" << value << "'");
    CHECK_THAT(ParseError({{name, value}}),
               Catch::StartsWith(Format("{}='{}' is not valid: expected ", name, value)));
  }
}

TEST_CASE("limits are inside the range") {
  CHECK(ParseOk({{"HVL_FUSION_THRESHOLD", "0"}}).fusion_threshold_bytes == 0);
  CHECK(ParseOk({{"HVL_FUSION_THRESHOLD", "16GiB"}}).fusion_threshold_bytes == 17179869184);
  CHECK(ParseOk({{"HVL_STAGING", "65536"}}).staging_bytes == 65536);
  CHECK(ParseOk({{"HVL_JOB_ID", std::string(64, 'x')}}).job_id.size() == 64);
}

TEST_CASE("bytes take binary units") {
  CHECK(ParseOk({{"HVL_STAGING", "64KiB"}}).staging_bytes == 64 << 10);
  CHECK(ParseOk({{"HVL_STAGING", "8MiB"}}).staging_bytes == 8 << 20);
  CHECK(ParseOk({{"HVL_STAGING", "1GiB"}}).staging_bytes == 1 << 30);
}

TEST_CASE("seconds and microseconds are decimal") {
  CHECK(ParseOk({{"HVL_START_TIMEOUT", "0.25"}}).start_timeout_seconds == 0.25);
  CHECK(ParseOk({{"HVL_SPIN", "1e2"}}).spin_us == 100.0);
}

TEST_CASE("booleans are words or digits in any case") {
  for (const auto* text : {"1", "true", "TRUE", "True", "yes", "on"}) {
    INFO(text);
    CHECK(ParseOk({{"HVL_DEBUG", text}}).debug);
  }
  for (const auto* text : {"0", "false", "No", "OFF"}) {
    INFO(text);
    CHECK_FALSE(ParseOk({{"HVL_REPRODUCIBLE", text}}).reproducible);
  }
  CHECK(ParseOk({{"HOROVOD_TIMELINE_MARK_CYCLES", "true"}}).timeline_mark_cycles);
}

TEST_CASE("an empty value counts as not set") {
  std::vector<std::string> warnings;
  const Config config =
      ParseOk({{"HVL_CACHE_CAPACITY", ""}, {"HOROVOD_CACHE_CAPACITY", "7"}, {"HVL_TIMELINE", ""}},
              &warnings);
  CHECK(config.cache_capacity == 7);
  CHECK(config.timeline.empty());
  CHECK(warnings.empty());
}

TEST_CASE("the HVL name wins over its alias, and a difference is a warning") {
  std::vector<std::string> warnings;
  const Config config =
      ParseOk({{"HVL_CACHE_CAPACITY", "5"}, {"HOROVOD_CACHE_CAPACITY", "6"}}, &warnings);
  CHECK(config.cache_capacity == 5);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] ==
        "HVL_CACHE_CAPACITY='5' and HOROVOD_CACHE_CAPACITY='6' name the same knob; "
        "HVL_CACHE_CAPACITY is used");
}

TEST_CASE("an alias that says the same in other words is no difference") {
  std::vector<std::string> warnings;
  ParseOk({{"HVL_FUSION_THRESHOLD", "64MiB"}, {"HOROVOD_FUSION_THRESHOLD", "67108864"}}, &warnings);
  CHECK(warnings.empty());
}

TEST_CASE("Horovod's cycle time is accepted, and said to have no effect") {
  std::vector<std::string> warnings;
  const Config config = ParseOk({{"HOROVOD_CYCLE_TIME", "3.5"}}, &warnings);
  CHECK(config.cycle_time_ms == 3.5);
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Catch::StartsWith("HOROVOD_CYCLE_TIME has no effect: "));
}

TEST_CASE("Horovod's library names for CPU operations warn and leave the default") {
  for (const auto* library : {"gloo", "ccl"}) {
    std::vector<std::string> warnings;
    const Config config = ParseOk({{"HOROVOD_CPU_OPERATIONS", library}}, &warnings);
    CHECK(config.cpu_operations == CpuOperations::kAuto);
    REQUIRE(warnings.size() == 1);
    CHECK_THAT(warnings[0], Catch::Contains(library) && Catch::Contains("HVL_CPU_OPERATIONS"));
  }
  CHECK(ParseOk({{"HVL_CPU_OPERATIONS", "Tcp"}}).cpu_operations == CpuOperations::kTcp);
  CHECK(ParseOk({{"HOROVOD_CPU_OPERATIONS", "MPI"}}).cpu_operations == CpuOperations::kMpi);
}

TEST_CASE("what happens to unnamed operations of different places is one of three") {
  CHECK(ParseOk({}).unnamed_sites == UnnamedSites::kError);
  CHECK(ParseOk({{"HVL_UNNAMED_SITES", "Warn"}}).unnamed_sites == UnnamedSites::kWarn);
  CHECK(ParseOk({{"HVL_UNNAMED_SITES", "off"}}).unnamed_sites == UnnamedSites::kOff);
}

TEST_CASE("warnings may be declined") { CHECK(ParseOk({{"HVL_NO_SUCH", "1"}}).size == 1); }

TEST_CASE("knob texts of two configurations differ exactly where the values do") {
  const Config defaults;
  const Config other = ParseOk({{"HVL_FUSION_THRESHOLD", "1MiB"}, {"HVL_LOG_LEVEL", "DEBUG"}});
  std::set<std::string_view> different;
  for (const KnobInfo& knob : AllKnobs()) {
    if (KnobText(defaults, knob.env_name) != KnobText(other, knob.env_name)) {
      different.insert(knob.env_name);
    }
  }
  CHECK(different == std::set<std::string_view>{"HVL_FUSION_THRESHOLD", "HVL_LOG_LEVEL"});
  CHECK(KnobText(other, "HVL_FUSION_THRESHOLD") == "1048576");
  CHECK(KnobText(other, "HVL_LOG_LEVEL") == "debug");
}

}  // namespace
}  // namespace hvl::config
