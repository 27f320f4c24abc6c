// Which sets of rank and size variables make a world, and what is said about the others.
#include <catch2/catch.hpp>

#include "csrc/config/config.h"

namespace hvl::config {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

TEST_CASE("what the launcher sets is taken over") {
  const Variables variables = {{"HVL_RANK", "5"},       {"HVL_SIZE", "8"},
                               {"HVL_LOCAL_RANK", "1"}, {"HVL_LOCAL_SIZE", "4"},
                               {"HVL_CROSS_RANK", "1"}, {"HVL_CROSS_SIZE", "2"}};
  const auto config = Config::Parse(MapEnv(variables), nullptr);
  REQUIRE(config.ok());
  CHECK(config->rank == 5);
  CHECK(config->size == 8);
  CHECK(config->local_rank == 1);
  CHECK(config->local_size == 4);
  CHECK(config->cross_rank == 1);
  CHECK(config->cross_size == 2);
}

TEST_CASE("without the local pair all ranks are on this host") {
  const auto config =
      Config::Parse(MapEnv({{"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "3"}}), nullptr);
  REQUIRE(config.ok());
  CHECK(config->local_rank == 1);
  CHECK(config->local_size == 3);
  CHECK(config->cross_rank == 0);
  CHECK(config->cross_size == 1);
}

TEST_CASE("the two spellings may be mixed") {
  const auto config = Config::Parse(MapEnv({{"HVL_RANK", "1"}, {"HOROVOD_SIZE", "2"}}), nullptr);
  REQUIRE(config.ok());
  CHECK(config->size == 2);
}

TEST_CASE("an incomplete or contradictory identity says what is missing") {
  struct Case {
    Variables variables;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {{{"HVL_RANK", "0"}}, "HVL_RANK is set but HVL_SIZE is not"},
      {{{"HVL_SIZE", "2"}}, "HVL_SIZE is set but HVL_RANK is not"},
      {{{"HVL_RANK", "0"}, {"HVL_SIZE", ""}}, "HVL_RANK is set but HVL_SIZE is not"},
      {{{"HOROVOD_RANK", "1"}}, "HOROVOD_RANK is set but HOROVOD_SIZE is not"},
      {{{"HVL_RANK", "2"}, {"HOROVOD_SIZE", "2"}}, "HVL_RANK=2 must be less than HOROVOD_SIZE=2"},
      {{{"HVL_RANK", "0"}, {"HVL_SIZE", "2"}, {"HVL_LOCAL_RANK", "0"}},
       "HVL_LOCAL_RANK is set but HVL_LOCAL_SIZE is not"},
      {{{"HVL_LOCAL_RANK", "0"}, {"HVL_LOCAL_SIZE", "1"}},
       "HVL_LOCAL_RANK and HVL_LOCAL_SIZE are set but HVL_RANK and HVL_SIZE are not"},
      {{{"HVL_RANK", "0"}, {"HVL_SIZE", "2"}, {"HVL_LOCAL_RANK", "0"}, {"HVL_LOCAL_SIZE", "3"}},
       "HVL_LOCAL_SIZE=3 is more than the whole world, HVL_SIZE=2"},
      {{{"HVL_RANK", "0"}, {"HVL_SIZE", "2"}, {"HVL_LOCAL_RANK", "0"}, {"HVL_LOCAL_SIZE", "1"}},
       "HVL_LOCAL_SIZE=1 of HVL_SIZE=2 ranks are on this host"},
      {{{"HVL_RANK", "0"}, {"HVL_SIZE", "2"}, {"HVL_CROSS_RANK", "2"}, {"HVL_CROSS_SIZE", "2"}},
       "HVL_CROSS_RANK=2 must be less than HVL_CROSS_SIZE=2"},
      {{{"HVL_RANK", "-1"}, {"HVL_SIZE", "2"}}, "HVL_RANK='-1' is not valid"},
      {{{"HVL_RANK", "0"}, {"HVL_SIZE", "0"}}, "HVL_SIZE='0' is not valid"},
  };
  for (const Case& item : cases) {
    const auto config = Config::Parse(MapEnv(item.variables), nullptr);
    INFO(item.expected);
    REQUIRE_FALSE(config.ok());
    CHECK(config.status().code() == StatusCode::kInvalidArgument);
    CHECK_THAT(config.status().message(), Catch::StartsWith(item.expected));
  }
}

}  // namespace
}  // namespace hvl::config
