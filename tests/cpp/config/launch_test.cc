// Where a process that hvlrun did not start learns its place: one family of variables each, and
// what happens when several are there.
#include "csrc/config/launch.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/str.h"

namespace hvl::config {
namespace {

using Catch::Contains;
using Variables = std::map<std::string, std::string, std::less<>>;

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "1371340801"},
                            {"OMPI_MCA_orte_hnp_uri", "1371340800.0;tcp://192.0.2.2:43769"}};
const Variables kHydra = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "4"},         {"SLURM_NTASKS", "7"},
                          {"SLURM_STEP_NUM_TASKS", "5"}, {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "2"},         {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                          {"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "3"}};
const Variables kTorchrun = {{"RANK", "1"},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables kPlain = {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_PORT", "1234"}};

Variables operator+(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

struct Found {
  Config config;
  Launch launch;
};

Result<Found> Find(const Variables& variables) {
  const MapEnv env(variables);
  HVL_ASSIGN_OR_RETURN(Config config, Config::Parse(env, nullptr));
  HVL_ASSIGN_OR_RETURN(Launch launch, FindLaunch(env, &config));
  return Found{std::move(config), std::move(launch)};
}

TEST_CASE("each launcher's variables tell rank, size and the local pair") {
  struct Case {
    Variables variables;
    std::string family;
    int rank, size, local_rank, local_size;
    std::string job;
  };
  const std::vector<Case> cases = {
      {kOpenMpi, "Open MPI", 3, 4, 1, 2,
       "PMIX_NAMESPACE=1371340801 OMPI_MCA_orte_hnp_uri=1371340800.0;tcp://192.0.2.2:43769"},
      {kHydra, "MPI (Hydra)", 1, 2, 1, 2, ""},
      {kSlurm, "Slurm", 4, 5, 0, 1, "SLURM_JOB_ID=77 SLURM_STEP_ID=3"},
      {kTorchrun, "torchrun", 1, 2, 1, 2,
       "TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 MASTER_PORT=29500"},
      {kPlain, "the environment", 2, 3, 2, 3, "MASTER_PORT=1234"},
      {{{"HOROVOD_RANK", "1"}, {"HVL_SIZE", "2"}, {"HVL_JOB_ID", "mine"}},
       "HVL_RANK",
       1,
       2,
       1,
       2,
       "HVL_JOB_ID=mine"},
      {{}, "", 0, 1, 0, 1, ""},
  };
  for (const Case& item : cases) {
    INFO(item.family);
    const auto found = Find(item.variables);
    REQUIRE(found.ok());
    CHECK(found->launch.family == item.family);
    CHECK(found->config.rank == item.rank);
    CHECK(found->config.size == item.size);
    CHECK(found->config.local_rank == item.local_rank);
    CHECK(found->config.local_size == item.local_size);
    CHECK(found->launch.job == item.job);
  }
}

TEST_CASE("only Hydra's jobs are told apart by a process") {
  CHECK(Find(kHydra)->launch.parent == "hydra_pmi_proxy");
  CHECK(Find(kTorchrun)->launch.parent.empty());
}

TEST_CASE("HVL_JOB_ID names the job of any launcher") {
  CHECK(Find(kHydra + Variables{{"HVL_JOB_ID", "a"}})->launch.job == "HVL_JOB_ID=a");
}

TEST_CASE("the variables that said so are named") {
  CHECK(Find(kPlain)->launch.variables == "RANK=2 and WORLD_SIZE=3");
  CHECK(Find(kSlurm)->launch.variables == "SLURM_PROCID=4 and SLURM_STEP_NUM_TASKS=5");
}

TEST_CASE("our own names are believed alone, whatever others say") {
  const auto found = Find(kOpenMpi + kTorchrun + Variables{{"HVL_RANK", "5"}, {"HVL_SIZE", "9"}});
  REQUIRE(found.ok());
  CHECK(found->config.rank == 5);
  CHECK(found->config.size == 9);
}

TEST_CASE("launchers that agree need no choice") {
  const auto found = Find(kHydra + kTorchrun);
  REQUIRE(found.ok());
  CHECK(found->launch.family == "MPI (Hydra)");
}

TEST_CASE("launchers that disagree are both named, and a knob chooses") {
  const Variables both = kOpenMpi + kTorchrun;
  const auto found = Find(both);
  REQUIRE_FALSE(found.ok());
  CHECK(found.status().code() == StatusCode::kInvalidArgument);
  CHECK_THAT(
      found.status().message(),
      Contains("rank 3 of 4 for Open MPI (OMPI_COMM_WORLD_RANK=3 and OMPI_COMM_WORLD_SIZE=4)") &&
          Contains("rank 1 of 2 for torchrun (RANK=1 and WORLD_SIZE=2)") &&
          Contains("HVL_LAUNCHER=openmpi or HVL_LAUNCHER=torchrun"));
  CHECK(Find(both + Variables{{"HVL_LAUNCHER", "openmpi"}})->config.rank == 3);
  CHECK(Find(both + Variables{{"HVL_LAUNCHER", "torchrun"}})->config.rank == 1);
  CHECK(Find(both + Variables{{"HVL_LAUNCHER", "none"}})->config.size == 1);
}

// Who starts ranks, and the least that it tells them.
struct LauncherRow {
  std::string title;
  std::string name;  // for HVL_LAUNCHER
  std::string rank, size;
  Variables sign = {};

  Variables Says(int rank_value, int size_value) const {
    return sign + Variables{{rank, std::to_string(rank_value)}, {size, std::to_string(size_value)}};
  }
};
const std::vector<LauncherRow> kLaunchers = {
    {"Open MPI", "openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"Slurm", "slurm", "SLURM_PROCID", "SLURM_NTASKS", {{"SLURM_STEP_ID", "0"}}},
    {"MPI (Hydra)", "hydra", "PMI_RANK", "PMI_SIZE"},
    {"torchrun", "torchrun", "RANK", "WORLD_SIZE", {{"TORCHELASTIC_RUN_ID", "x"}}},
    {"the environment", "environment", "RANK", "WORLD_SIZE"},
};

TEST_CASE("of every pair of launchers that disagree, both are named and either can be chosen") {
  int pairs = 0;
  for (const LauncherRow& a : kLaunchers) {
    for (const LauncherRow& b : kLaunchers) {
      if (a.rank == b.rank) continue;  // the same variables cannot disagree
      for (const auto& [rank, size] : std::vector<std::pair<int, int>>{{1, 4}, {0, 2}}) {
        const Variables both = a.Says(0, 4) + b.Says(rank, size);
        INFO(a.title << " 0 of 4, " << b.title << " " << rank << " of " << size);
        const auto found = Find(both);
        const auto chosen = Find(both + Variables{{"HVL_LAUNCHER", b.name}});
        REQUIRE(chosen.ok());
        CHECK(chosen->config.rank == rank);
        CHECK(chosen->config.size == size);
        ++pairs;
        if (a.name == "slurm" || b.name == "slurm") {  // which gives way
          REQUIRE(found.ok());
          CHECK(found->config.size == (a.name == "slurm" ? size : 4));
          continue;
        }
        REQUIRE_FALSE(found.ok());
        CHECK(found.status().code() == StatusCode::kInvalidArgument);
        for (const LauncherRow* row : {&a, &b}) {
          CHECK_THAT(found.status().message(),
                     Contains(Format("for {} ({}=", row->title, row->rank)) &&
                         Contains("HVL_LAUNCHER=" + row->name));
        }
        const auto agree = Find(a.Says(rank, size) + b.Says(rank, size));
        REQUIRE(agree.ok());
        CHECK(agree->config.rank == rank);
      }
    }
  }
  CHECK(pairs == 2 * (5 * 5 - 5 - 2));
}

TEST_CASE("HVL_RANK is believed beside every launcher that says something else") {
  for (const LauncherRow& row : kLaunchers) {
    for (const std::string prefix : {"HVL_", "HOROVOD_"}) {
      INFO(prefix << row.title);
      const auto found =
          Find(row.Says(0, 4) + Variables{{prefix + "RANK", "5"}, {prefix + "SIZE", "9"}});
      REQUIRE(found.ok());
      CHECK(found->config.rank == 5);
      CHECK_FALSE(found->launch.is_mpi);
    }
  }
}

TEST_CASE("only ranks of an MPI launcher can meet through MPI") {
  for (const LauncherRow& row : kLaunchers) {
    INFO(row.title);
    const auto found = Find(row.Says(0, 4));
    REQUIRE(found.ok());
    CHECK(found->launch.is_mpi == (row.name == "openmpi" || row.name == "hydra"));
  }
}

TEST_CASE("a launcher that is asked for must have started the process") {
  const auto found = Find(kTorchrun + Variables{{"HVL_LAUNCHER", "slurm"}});
  REQUIRE_FALSE(found.ok());
  CHECK_THAT(found.status().message(), Contains("HVL_LAUNCHER=slurm"));
  CHECK_FALSE(Find({{"HVL_LAUNCHER", "mpirun"}}).ok());
}

TEST_CASE("Slurm's variables outside of a step of srun are not a place") {
  Variables batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  CHECK(Find(batch)->config.size == 1);
  // The batch script, the interactive shell, the external step.
  for (const char* step : {"4294967291", "4294967290", "4294967292", "batch", ""}) {
    batch["SLURM_STEP_ID"] = step;
    INFO(step);
    CHECK(Find(batch)->config.size == 1);
  }
}

TEST_CASE("Slurm gives way to a launcher that was started inside of a step") {
  const auto inner = Find(kSlurm + kTorchrun);
  REQUIRE(inner.ok());
  CHECK(inner->launch.family == "torchrun");
  CHECK(inner->config.rank == 1);
  // srun --mpi=pmi2 sets PMI_RANK too, and knows more.
  const auto pmi = Find(kSlurm + Variables{{"PMI_RANK", "4"}, {"PMI_SIZE", "5"}});
  REQUIRE(pmi.ok());
  CHECK(pmi->launch.family == "Slurm");
}

TEST_CASE("the tasks of a Slurm node come from the list, where it is one") {
  struct Case {
    std::string counts, node;
    int local_size;
  };
  const std::vector<Case> cases = {
      {"5", "0", 5},
      {"3,2", "1", 2},
      {"1(x3),2", "3", 2},
      {"2(x2),1", "0", 2},
      // No such node, or nonsense: then all ranks are taken to be on this host.
      {"3,2", "2", 5},
      {"2(x", "0", 5},
      {"(x2)", "0", 5},
      {"2(x2", "0", 5},
      {"", "0", 5},
      {"2(xa),1", "1", 5},
      {"-2", "0", 5},
      {"2(x2),1", "a", 5},
  };
  for (const Case& item : cases) {
    INFO(item.counts << " node " << item.node);
    const auto found = Find(kSlurm + Variables{{"SLURM_STEP_TASKS_PER_NODE", item.counts},
                                               {"SLURM_NODEID", item.node}});
    REQUIRE(found.ok());
    CHECK(found->config.local_size == item.local_size);
  }
}

TEST_CASE("half of a place, and numbers that are none, are errors that name the variable") {
  struct Case {
    Variables variables;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {{{"RANK", "0"}}, "RANK=0 is set but WORLD_SIZE is not"},
      {{{"PMI_SIZE", "2"}}, "PMI_SIZE=2 is set but PMI_RANK is not"},
      {{{"OMPI_COMM_WORLD_RANK", "1"}}, "OMPI_COMM_WORLD_RANK=1 is set but OMPI_COMM_WORLD_SIZE"},
      {{{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK='x' is not valid"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE='0' is not valid"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK='-1' is not valid"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2 must be less than WORLD_SIZE=2"},
      {kPlain + Variables{{"LOCAL_RANK", "2"}, {"LOCAL_SIZE", "2"}},
       "LOCAL_RANK=2 and LOCAL_SIZE=2 contradict"},
      {kPlain + Variables{{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "4"}},
       "LOCAL_RANK=0 and LOCAL_WORLD_SIZE=4 contradict"},
  };
  for (const Case& item : cases) {
    INFO(item.expected);
    const auto found = Find(item.variables);
    REQUIRE_FALSE(found.ok());
    CHECK(found.status().code() == StatusCode::kInvalidArgument);
    CHECK_THAT(found.status().message(), Catch::StartsWith(item.expected));
    CHECK(Find(item.variables + Variables{{"HVL_LAUNCHER", "none"}}).ok());
  }
}

}  // namespace
TEST_CASE("the host of rank 0 comes from MASTER_ADDR, or is the first of a Slurm step") {
  const auto torchrun = Find(kTorchrun + Variables{{"MASTER_ADDR", "node1"}});
  REQUIRE(torchrun.ok());
  CHECK(torchrun->launch.head == "node1");
  CHECK(torchrun->launch.head_port == 29501);  // torch.distributed has MASTER_PORT
  CHECK(torchrun->launch.knows_host);
  const Variables nodes = {{"SLURM_STEP_NODELIST", "node[07-09,12]"}};
  const auto slurm = Find(kSlurm + nodes);
  REQUIRE(slurm.ok());
  CHECK(slurm->launch.head == "node07");
  CHECK(slurm->launch.head_port >= 20'000);
  CHECK(slurm->launch.head_port < 32'000);
  const auto next_step = Find(kSlurm + nodes + Variables{{"SLURM_STEP_ID", "4"}});
  CHECK(next_step->launch.head_port != slurm->launch.head_port);
  const auto chosen = Find(kSlurm + nodes + Variables{{"HVL_STORE_PORT", "4711"}});
  CHECK(chosen->launch.head_port == 4711);
  const auto plain = Find(kPlain + Variables{{"MASTER_ADDR", "10.0.0.1"}});
  REQUIRE(plain.ok());
  CHECK_FALSE(plain->launch.knows_host);
  CHECK(plain->launch.head_port == 1235);
  const auto bad = Find(kPlain + Variables{{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "70000"}});
  CHECK(bad.status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("the first host of a Slurm list") {
  CHECK(FirstOfNodeList("a") == "a");
  CHECK(FirstOfNodeList("a,b") == "a");
  CHECK(FirstOfNodeList("gpu[001-128,200],x") == "gpu001");
  CHECK(FirstOfNodeList("x,gpu[001-128]") == "x");
  CHECK(FirstOfNodeList("gpu[3]-ib,x") == "gpu3-ib");
  CHECK(FirstOfNodeList("rack[1-2]node[4,5]") == "rack1node4");
  CHECK(FirstOfNodeList("gpu[3").empty());
  CHECK(FirstOfNodeList("").empty());
}

}  // namespace hvl::config
