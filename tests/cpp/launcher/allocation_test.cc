// What batch systems say about the hosts of a job.
#include "launcher/allocation.h"

#include <catch2/catch.hpp>

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

using Entries = std::vector<std::string>;
using Hosts = std::vector<HostSlots>;

Allocation Found(const Entries& entries) {
  const auto found = FindAllocation(EnvBlock(entries));
  INFO(found.status().ToString());
  REQUIRE(found.ok());
  REQUIRE(found->has_value());
  return **found;
}

TEST_CASE("numbers for each host are read as Slurm writes them") {
  CHECK(*ParseCounts("2(x3),1") == std::vector<int>{2, 2, 2, 1});
  CHECK(*ParseCounts("64") == std::vector<int>{64});
  for (const char* bad : {"", "2(x", "2(x0)", "x", "2,,1", "2(x99999999)", "-1", "2(3)"}) {
    INFO(bad);
    CHECK_FALSE(ParseCounts(bad).ok());
  }
}

TEST_CASE("Slurm's nodes have as many slots as tasks, or as processors where no tasks were named") {
  const Allocation tasks =
      Found({"SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=gpu[01-02],login", "SLURM_NTASKS=5",
             "SLURM_TASKS_PER_NODE=2(x2),1", "SLURM_JOB_CPUS_PER_NODE=64(x3)"});
  CHECK(tasks.system == "Slurm job 7");
  CHECK(tasks.rsh == "srun");
  CHECK(tasks.hosts == Hosts{{"gpu01", 2}, {"gpu02", 2}, {"login", 1}});
  CHECK(Found({"SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=a,b", "SLURM_TASKS_PER_NODE=1(x2)",
               "SLURM_JOB_CPUS_PER_NODE=64,32"})
            .hosts == Hosts{{"a", 64}, {"b", 32}});
}

TEST_CASE("a lone host takes any number of ranks") {
  CHECK(Found({"SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=a", "SLURM_TASKS_PER_NODE=1"}).hosts ==
        Hosts{{"a", std::nullopt}});
}

TEST_CASE("what does not fit together in Slurm's variables is an error with the way out") {
  const auto found = FindAllocation(EnvBlock(Entries{"SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=a,b",
                                                     "SLURM_NTASKS=3", "SLURM_TASKS_PER_NODE=3"}));
  REQUIRE_FALSE(found.ok());
  CHECK(found.status().message() ==
        "SLURM_TASKS_PER_NODE='3' does not say how many ranks each of the 2 hosts 'a,b' takes; -H "
        "or --hostfile says where ranks run");
}

TEST_CASE("outside of a job, and in a step of several copies, there is no allocation") {
  CHECK_FALSE(FindAllocation(EnvBlock(Entries{"SLURM_CLUSTER=x"}))->has_value());
  CHECK_FALSE(FindAllocation(EnvBlock(Entries{"SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=a,b",
                                              "SLURM_STEP_NUM_TASKS=2"}))
                  ->has_value());
}

TEST_CASE("PBS and LSF name a file with a line for each slot") {
  const std::string path =
      std::filesystem::temp_directory_path() / Format("allocation.{}", ::getpid());
  std::ofstream(path) << "n1\nn1\nn2\nn1\n";
  const Allocation pbs = Found({"PBS_NODEFILE=" + path, "PBS_JOBID=8"});
  CHECK(pbs.system == "PBS job 8");
  CHECK(pbs.rsh == "ssh");
  CHECK(pbs.hosts == Hosts{{"n1", 3}, {"n2", 1}});
  CHECK(Found({"LSB_DJOB_HOSTFILE=" + path}).rsh == "blaunch");
  std::filesystem::remove(path);
  CHECK_THAT(FindAllocation(EnvBlock(Entries{"PBS_NODEFILE=" + path})).status().message(),
             Catch::StartsWith("cannot read PBS_NODEFILE="));
}

}  // namespace
}  // namespace hvl::launcher
