// From knobs to the options of the rooms.
#include "csrc/session/settings.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>

namespace hvl::session {
namespace {

TEST_CASE("a rank holds on to its core while it waits, unless the ranks outnumber the processors") {
  config::Config config;
  config.local_size = 64;
  config.local_processors = 64;
  CHECK(EngineOptions(config).keep_core > Duration::zero());
  CHECK(TcpOptions(config).spin > Duration::zero());
  config.local_processors = 63;
  CHECK(EngineOptions(config).keep_core == Duration::zero());
  CHECK(TcpOptions(config).spin == Duration::zero());
}

TEST_CASE("each rank of a host finds the processor of its threads by its local rank") {
  config::Config config;
  CHECK(*ThreadProcessor(config) == std::nullopt);
  config.local_size = 2;
  config.local_rank = 1;
  config.thread_affinity = "4,7";
  CHECK(*ThreadProcessor(config) == 7);
  config.thread_affinity = "4,7,9";
  CHECK(*ThreadProcessor(config) == 7);
}

TEST_CASE("a list of processors that is too short or no list is refused with what is expected") {
  config::Config config;
  config.local_size = 2;
  for (const char* bad : {"4", "4,", "4,x", "4,-1", "4 7", ",", "4;7"}) {
    config.thread_affinity = bad;
    INFO(bad);
    const auto processor = ThreadProcessor(config);
    REQUIRE_FALSE(processor.ok());
    CHECK_THAT(processor.status().message(), Catch::Contains("expected 2 processors"));
  }
}

TEST_CASE("HVL_SUM_GROUPS says where groups end, and has to add up to the world") {
  config::Config config;
  config.size = 8;
  CHECK(SumGroupEnds(config)->empty());
  config.sum_groups = std::string("8");
  CHECK(*SumGroupEnds(config) == std::vector<int>{8});
  config.sum_groups = std::string("1,4,3");
  CHECK(*SumGroupEnds(config) == std::vector<int>{1, 5, 8});
  for (const char* bad :
       {"4,5", "4,3", "4,4,0", "0,8", "-1,9", "4,4,", "4;4", "two", "2147483647,2147483647"}) {
    config.sum_groups = std::string(bad);
    INFO(bad);
    const auto ends = SumGroupEnds(config);
    REQUIRE_FALSE(ends.ok());
    CHECK(ends.status().code() == StatusCode::kInvalidArgument);
    CHECK_THAT(ends.status().message(),
               Catch::Contains(bad) && Catch::Contains("add up to 8, like 4,4"));
  }
}

TEST_CASE("the places of ranks on several hosts come from the hosts, unless a launcher told them") {
  const std::vector<int> hosts = {0, 0, 0, 1, 2, 2};
  config::Config config;
  config.size = 6;
  config.rank = 5;
  config.local_size = 6;
  config.local_rank = 5;
  PlaceByHosts(hosts, &config);
  CHECK(config.local_rank == 1);
  CHECK(config.local_size == 2);
  CHECK(config.cross_rank == 1);  // host 1 has no second rank
  CHECK(config.cross_size == 2);
  config.cross_size = 9;
  config.local_rank = 7;
  PlaceByHosts(hosts, &config);
  CHECK(config.local_rank == 7);
  config::Config alone;
  alone.size = alone.local_size = 2;
  alone.rank = alone.local_rank = 1;
  PlaceByHosts(std::vector<int>{0, 0}, &alone);
  CHECK(alone.local_rank == 1);
  CHECK(alone.cross_size == 1);
}

TEST_CASE("freed memory is kept unless the user has told the C library what to do") {
  const auto keeps = [](std::map<std::string, std::string, std::less<>> variables) {
    const config::MapEnv env(std::move(variables));
    return KeepsFreedMemory(*config::Config::Parse(env, nullptr), env);
  };
  CHECK(keeps({}));
  CHECK(keeps({{"GLIBC_TUNABLES", "glibc.rtld.nns=2"}}));
  CHECK_FALSE(keeps({{"HVL_KEEP_MEMORY", "0"}}));
  CHECK_FALSE(keeps({{"MALLOC_TRIM_THRESHOLD_", "131072"}}));
  CHECK_FALSE(keeps({{"MALLOC_MMAP_THRESHOLD_", "131072"}}));
  CHECK_FALSE(keeps({{"GLIBC_TUNABLES", "glibc.malloc.arena_max=1"}}));
}

}  // namespace
}  // namespace hvl::session
