#include "launcher/knob_flags.h"

#include <catch2/catch.hpp>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

KnobFlag Find(std::string_view name) {
  for (const KnobFlag& flag : KnobFlags()) {
    if (flag.knob.flag == name) return flag;
  }
  FAIL("no flag " << name);
  return {};
}

std::vector<EnvSetting> SettingsOk(std::string_view flag, const std::string& value) {
  const auto settings = KnobSettings(Find(flag), value);
  INFO(settings.status().ToString());
  REQUIRE(settings.ok());
  return *settings;
}

std::string SettingsError(std::string_view flag, const std::string& value) {
  const auto settings = KnobSettings(Find(flag), value);
  REQUIRE_FALSE(settings.ok());
  return settings.status().message();
}

TEST_CASE("a flag sets the knob and its Horovod alias") {
  CHECK(SettingsOk("--cache-capacity", "77") ==
        std::vector<EnvSetting>{{"HVL_CACHE_CAPACITY", "77"}, {"HOROVOD_CACHE_CAPACITY", "77"}});
}

TEST_CASE("a flag that ends in -mb counts in MiB") {
  CHECK(SettingsOk("--fusion-threshold-mb", "32").front() ==
        EnvSetting{"HVL_FUSION_THRESHOLD", "33554432"});
  CHECK(SettingsOk("--fusion-threshold-mb", "0").front().value == "0");
}

TEST_CASE("a bad value is refused with flag, value and range") {
  CHECK(SettingsError("--cache-capacity", "12abc") ==
        "--cache-capacity 12abc: expected an integer from 0 to 16777216");
  CHECK_THAT(SettingsError("--fusion-threshold-mb", "1.5"),
             Catch::StartsWith("--fusion-threshold-mb 1.5: expected MiB that make bytes from 0"));
  CHECK_THAT(SettingsError("--fusion-threshold-mb", "99999999999999"), Catch::Contains("MiB"));
  CHECK_THAT(SettingsError("--log-level", "loud"), Catch::Contains("trace, debug"));
  CHECK_THAT(SettingsError("--cache-capacity", ""), Catch::StartsWith("--cache-capacity ''"));
}

TEST_CASE("every switch has a negation that differs from it") {
  int switches = 0;
  for (const KnobFlag& flag : KnobFlags()) {
    if (!flag.is_switch) continue;
    ++switches;
    INFO(flag.names);
    const std::size_t comma = flag.names.find(",!--");
    REQUIRE(comma != std::string::npos);
    CHECK(flag.names.substr(0, comma) != flag.names.substr(comma + 2));
  }
  CHECK(switches >= 3);
  CHECK(Find("--no-stall-check").names == "--no-stall-check,!--stall-check");
  CHECK(Find("--log-without-timestamp").names == "--log-without-timestamp,!--log-with-timestamp");
  CHECK(Find("--timeline-mark-cycles").names ==
        "--timeline-mark-cycles,!--no-timeline-mark-cycles");
}

}  // namespace
}  // namespace hvl::launcher
