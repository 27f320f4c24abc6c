// ProcessEnv and MapEnv give the same view of the same variables.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "csrc/config/config.h"

namespace hvl::config {
namespace {

void CheckView(const EnvSource& env) {
  CHECK(env.Get("HVL_TEST_SET") == "a=b");
  CHECK(env.Get("HVL_TEST_EMPTY") == "");
  CHECK(env.Get("HVL_TEST_UNSET") == std::nullopt);
  const auto names = env.Names();
  CHECK(std::count(names.begin(), names.end(), "HVL_TEST_SET") == 1);
  CHECK(std::count(names.begin(), names.end(), "HVL_TEST_EMPTY") == 1);
  CHECK(std::count(names.begin(), names.end(), "HVL_TEST_UNSET") == 0);
}

TEST_CASE("the process environment is read as it is now") {
  REQUIRE(::setenv("HVL_TEST_SET", "a=b", 1) == 0);
  REQUIRE(::setenv("HVL_TEST_EMPTY", "", 1) == 0);
  REQUIRE(::unsetenv("HVL_TEST_UNSET") == 0);
  CheckView(ProcessEnv());
}

TEST_CASE("a map stands in for the environment") {
  CheckView(MapEnv({{"HVL_TEST_SET", "a=b"}, {"HVL_TEST_EMPTY", ""}}));
}

}  // namespace
}  // namespace hvl::config
