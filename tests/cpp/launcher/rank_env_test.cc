#include "launcher/rank_env.h"

#include <catch2/catch.hpp>

namespace hvl::launcher {
namespace {

const RankPlace kPlace{.host = "127.0.0.1",
                       .rank = 3,
                       .size = 4,
                       .local_rank = 1,
                       .local_size = 2,
                       .cross_rank = 1,
                       .cross_size = 2};

JobFacts Facts() {
  return {.job_id = "j1",
          .store_address = "unix:@s",
          .secret_fd = "9",
          .master_address = "127.0.0.1",
          .master_port = "4321",
          .threads_per_rank = 4,
          .columns = "",
          .lines = ""};
}

EnvBlock Inherited(std::vector<std::string> entries) {
  std::vector<char*> pointers;
  for (std::string& entry : entries) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  return EnvBlock(pointers.data());
}

TEST_CASE("a rank is told its place under our names, Horovod's and torchrun's") {
  const EnvBlock env = RankEnvironment(EnvBlock(), {}, {}, kPlace, Facts());
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"HVL_RANK", "3"},
      {"HOROVOD_RANK", "3"},
      {"RANK", "3"},
      {"HVL_SIZE", "4"},
      {"HOROVOD_SIZE", "4"},
      {"WORLD_SIZE", "4"},
      {"HVL_LOCAL_RANK", "1"},
      {"HOROVOD_LOCAL_RANK", "1"},
      {"LOCAL_RANK", "1"},
      {"HVL_LOCAL_SIZE", "2"},
      {"HOROVOD_LOCAL_SIZE", "2"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"HVL_CROSS_RANK", "1"},
      {"HOROVOD_CROSS_RANK", "1"},
      {"HVL_CROSS_SIZE", "2"},
      {"HOROVOD_CROSS_SIZE", "2"},
      {"HOROVOD_HOSTNAME", "127.0.0.1"},
      {"HVL_JOB_ID", "j1"},
      {"HVL_STORE", "unix:@s"},
      {"HVL_SECRET_FD", "9"},
      {"HVL_LOCAL_PROCESSORS", "0"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "4321"},
      {"PYTHONUNBUFFERED", "1"},
      {"OMP_NUM_THREADS", "4"}};
  for (const auto& [name, value] : expected) {
    INFO(name);
    CHECK(env.Get(name) == value);
  }
  CHECK(env.entries().size() == expected.size());
}

TEST_CASE("what a job inherited from another launcher about ranks is replaced") {
  const EnvBlock env = RankEnvironment(Inherited({"RANK=0", "HVL_RANK=0", "HVL_STORE=old"}), {}, {},
                                       kPlace, Facts());
  CHECK(env.Get("RANK") == "3");
  CHECK(env.Get("HVL_RANK") == "3");
  CHECK(env.Get("HVL_STORE") == "unix:@s");
}

TEST_CASE("flag beats -x, -x beats the environment, the environment beats the default") {
  const EnvBlock inherited = Inherited({"HVL_CACHE_CAPACITY=1", "B=env", "C=env"});
  const EnvBlock env = RankEnvironment(inherited, {{"HVL_CACHE_CAPACITY", "2"}, {"B", "x"}},
                                       {{"HVL_CACHE_CAPACITY", "3"}}, kPlace, Facts());
  CHECK(env.Get("HVL_CACHE_CAPACITY") == "3");
  CHECK(env.Get("B") == "x");
  CHECK(env.Get("C") == "env");
}

TEST_CASE("the user's own values of what is only a default stay") {
  const EnvBlock inherited =
      Inherited({"OMP_NUM_THREADS=7", "PYTHONUNBUFFERED=", "MASTER_ADDR=h", "MASTER_PORT=1"});
  const EnvBlock env = RankEnvironment(inherited, {}, {}, kPlace, Facts());
  CHECK(env.Get("OMP_NUM_THREADS") == "7");
  CHECK(env.Get("PYTHONUNBUFFERED") == "");
  CHECK(env.Get("MASTER_ADDR") == "h");
  CHECK(env.Get("MASTER_PORT") == "1");
}

TEST_CASE("on a terminal ranks are told the room beside the tag, unless the user chose") {
  JobFacts facts = Facts();
  facts.columns = "68";
  facts.lines = "24";
  const EnvBlock env = RankEnvironment(Inherited({"LINES=9"}), {}, {}, kPlace, facts);
  CHECK(env.Get("COLUMNS") == "68");
  CHECK(env.Get("TQDM_NCOLS") == "68");
  CHECK(env.Get("LINES") == "9");
}

TEST_CASE("ranks that are bound are told how many processors all of them share") {
  JobFacts facts = Facts();
  facts.bound_processors = 64;
  const EnvBlock outer = Inherited({"HVL_LOCAL_PROCESSORS=8"});
  CHECK(RankEnvironment(outer, {}, {}, kPlace, facts).Get("HVL_LOCAL_PROCESSORS") == "64");
  CHECK(RankEnvironment(outer, {}, {}, kPlace, Facts()).Get("HVL_LOCAL_PROCESSORS") == "0");
}

TEST_CASE("identity variables are those that nobody may choose") {
  CHECK(IsIdentityVariable("HVL_RANK"));
  CHECK(IsIdentityVariable("WORLD_SIZE"));
  CHECK(IsIdentityVariable("HVL_SECRET_FD"));
  CHECK_FALSE(IsIdentityVariable("MASTER_PORT"));
  CHECK_FALSE(IsIdentityVariable("HVL_CACHE_CAPACITY"));
  CHECK_FALSE(IsIdentityVariable(""));
}

}  // namespace
}  // namespace hvl::launcher
