#include "launcher/drop_in.h"

#include <catch2/catch.hpp>

namespace hvl::launcher {
namespace {

using Settings = std::vector<EnvSetting>;

EnvBlock Env(const Settings& settings) {
  EnvBlock env;
  for (const EnvSetting& setting : settings) env.Set(setting.name, setting.value);
  return env;
}

TEST_CASE("the drop-in folder comes first on the path of modules") {
  CHECK(DropInSettings("/site", Env({})) ==
        Settings{{"PYTHONPATH", "/site"}, {"HVL_UNNAMED_SITES", "warn"}});
  CHECK(DropInSettings("/site", Env({{"PYTHONPATH", "/a:/b"}})).front().value == "/site:/a:/b");
  CHECK(DropInSettings("/site", Env({{"PYTHONPATH", ""}})).front().value == "/site");
}

TEST_CASE("what the user says about unnamed operations stays") {
  CHECK(DropInSettings("/site", Env({{"HVL_UNNAMED_SITES", "error"}})).size() == 1);
}

TEST_CASE("a launcher outside the package names the folder that it misses") {
  const Result<std::string> site = DropInSite("/nonexistent/horovodlite/bin/hvlrun");
  REQUIRE_FALSE(site.ok());
  CHECK_THAT(site.status().message(),
             Catch::Contains("the folder /nonexistent/horovodlite/_drop_in_site does not exist"));
}

}  // namespace
}  // namespace hvl::launcher
