// The command line and the environment that hvlrun --mpi becomes.
#include "launcher/mpi_start.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

using Catch::Contains;
using Words = std::vector<std::string>;

const MpiLauncher kOpen4{.kind = MpiKind::kOpenMpi4, .program = "/usr/bin/mpirun", .version = "v"};
const MpiLauncher kOpen5{.kind = MpiKind::kOpenMpi5, .program = "/o/mpirun", .version = "v"};
const MpiLauncher kHydra{.kind = MpiKind::kHydra, .program = "/m/mpiexec", .version = "v"};
const MpiLauncher kIntel{.kind = MpiKind::kIntel, .program = "/i/mpirun", .version = "v"};
const MpiLauncher kSrun{.kind = MpiKind::kSlurm, .program = "/usr/bin/srun", .version = "v"};

/// A job of this machine.
Job Here(int ranks, Words environment = {}) {
  Job job;
  job.options.mpi.wanted = true;
  job.options.num_proc = ranks;
  job.options.command = {"python", "train.py", "a b"};
  job.inherited = EnvBlock(std::move(environment));
  return job;
}

/// One of two hosts, with ranks shared out as said.
Job OnHosts(int first, int second, Words environment = {}) {
  Job job = Here(first + second, std::move(environment));
  job.hosts = {{.host = "n1", .user = "", .first_rank = 0, .rank_count = first},
               {.host = "n2", .user = "", .first_rank = first, .rank_count = second}};
  return job;
}

MpiCommand CommandOk(const Job& job, const MpiLauncher& launcher, bool is_root = false) {
  const Result<MpiCommand> command = MpiCommandOf(job, launcher, is_root);
  INFO(command.status().message());
  REQUIRE(command.ok());
  return *command;
}

std::string Line(const Job& job, const MpiLauncher& launcher, bool is_root = false) {
  std::string line;
  for (const std::string& word : CommandOk(job, launcher, is_root).words) {
    line +=
        (line.empty() ? "" : " ") + (word.find(' ') == std::string::npos ? word : "'" + word + "'");
  }
  return line;
}

std::string Refusal(const Job& job, const MpiLauncher& launcher) {
  const Result<MpiCommand> command = MpiCommandOf(job, launcher, false);
  REQUIRE_FALSE(command.ok());
  CHECK(command.status().code() == StatusCode::kInvalidArgument);
  return command.status().message();
}

TEST_CASE("a launcher is known by what it says of its version") {
  struct Row {
    std::string says;
    MpiKind kind;
  };
  for (const Row& row : std::vector<Row>{
           {"mpirun (Open MPI) 4.1.4\n\nReport bugs to", MpiKind::kOpenMpi4},
           {"mpirun (Open MPI) 3.1.0\n", MpiKind::kOpenMpi4},
           {"mpirun (Open MPI) 5.0.11\n", MpiKind::kOpenMpi5},
           {"mpirun (IBM Spectrum MPI) 10.04.00.03\n", MpiKind::kOpenMpi4},
           {"HYDRA build details:\n    Version:    4.0.2\n", MpiKind::kHydra},
           {"Intel(R) MPI Library for Linux* OS, Version 2021.11\n", MpiKind::kIntel},
           {"slurm 22.05.8\n", MpiKind::kSlurm},
       }) {
    INFO(row.says);
    const Result<MpiLauncher> launcher = RecogniseMpi("/x/mpirun", row.says);
    REQUIRE(launcher.ok());
    CHECK(launcher->kind == row.kind);
    CHECK(launcher->program == "/x/mpirun");
    CHECK(launcher->version == row.says.substr(0, row.says.find('\n')));
  }
  const Status status = RecogniseMpi("/x/mpirun", "mystery 1.0\n").status();
  CHECK(status.code() == StatusCode::kNotSupported);
  CHECK_THAT(status.message(), Contains("/x/mpirun") && Contains("it says 'mystery 1.0'"));
}

TEST_CASE("on this machine each launcher gets its own spelling of the same job") {
  const Job job = Here(4);
  CHECK(Line(job, kOpen4) ==
        "/usr/bin/mpirun --tag-output -np 4 --bind-to none --map-by slot --oversubscribe "
        "python train.py 'a b'");
  CHECK(Line(job, kOpen5) ==
        "/o/mpirun --output tag -np 4 --bind-to none --map-by slot:OVERSUBSCRIBE "
        "python train.py 'a b'");
  CHECK(Line(job, kHydra) == "/m/mpiexec -prepend-rank -np 4 -bind-to none python train.py 'a b'");
  CHECK(Line(job, kIntel) ==
        "/i/mpirun -prepend-rank -np 4 -genv I_MPI_PIN 0 python train.py 'a b'");
  CHECK(Line(job, kSrun) ==
        "/usr/bin/srun --label -n 4 --distribution=block --cpu-bind=none python train.py 'a b'");
  CHECK_THAT(Line(job, kOpen4, true), Contains("mpirun --allow-run-as-root "));
  CHECK(Line(job, kHydra, true) == Line(job, kHydra));
}

TEST_CASE("hosts are named with the ranks that hvlrun itself would put there") {
  const Job job = OnHosts(2, 1);
  CHECK_THAT(Line(job, kOpen4), Contains(" -np 3 -H n1:2,n2:1 "));
  CHECK_THAT(Line(job, kOpen5), Contains(" -np 3 -H n1:2,n2:1 "));
  CHECK_THAT(Line(job, kHydra), Contains(" -np 3 -hosts n1:2,n2:1 "));
  CHECK_THAT(Line(OnHosts(2, 2), kSrun),
             Contains(" -n 4 ") && Contains(" -w n1,n2 ") && Contains(" --ntasks-per-node 2 "));
  CHECK_THAT(Refusal(job, kSrun), Contains("the same number of ranks for each host"));
  Job odd = OnHosts(1, 1);
  odd.hosts[0].user = "me";
  CHECK_THAT(Refusal(odd, kOpen4), Contains("-H me@n1") && Contains("~/.ssh/config"));
  odd = OnHosts(1, 1);
  odd.hosts[1].host = "fd00::1";
  CHECK_THAT(Refusal(odd, kHydra), Contains("-H [fd00::1]") && Contains("no IPv6 addresses"));
}

TEST_CASE("how hosts are reached is told to the launcher that calls them") {
  Job job = OnHosts(1, 1);
  CHECK_THAT(Line(job, kOpen4), !Contains("plm_rsh"));
  CHECK_THAT(Line(job, kHydra), !Contains("-launcher"));
  job.options.starter.ssh_port = 2222;
  job.options.starter.ssh_identity_file = "key";
  CHECK_THAT(Line(job, kOpen4), Contains(" --mca plm_rsh_args '-p 2222 -i key' "));
  CHECK_THAT(Line(job, kOpen5), Contains(" --prtemca plm_ssh_args '-p 2222 -i key' "));
  CHECK_THAT(Line(job, kHydra), Contains(" -launcher ssh "));
  CHECK(CommandOk(job, kHydra).env.Get("HYDRA_LAUNCHER_EXTRA_ARGS") == "-p 2222 -i key");
  job.options.starter.rsh = "kube.sh -v";
  CHECK_THAT(Line(job, kOpen4), Contains(" --mca plm_rsh_agent 'kube.sh -v' "));
  CHECK_THAT(Line(job, kOpen5), Contains(" --prtemca plm_ssh_agent 'kube.sh -v' "));
  CHECK_THAT(Line(job, kHydra), Contains(" -launcher ssh -launcher-exec kube.sh "));
  CHECK(CommandOk(job, kHydra).env.Get("HYDRA_LAUNCHER_EXTRA_ARGS") == "-v");
  job.options.starter.rsh = "srun";
  CHECK_THAT(Line(job, kOpen4), Contains(" --mca plm slurm "));
  CHECK_THAT(Line(job, kHydra), Contains(" -launcher slurm "));
}

TEST_CASE("--binding-args, --mpi-args, --tcp and interfaces go where they belong") {
  Job job = Here(2);
  job.options.mpi.binding_args = "--bind-to socket";
  job.options.mpi.args = "--mca pml 'a b' -x $HVL_NO_SUCH_VARIABLE";
  CHECK(Line(job, kOpen4) ==
        "/usr/bin/mpirun --tag-output -np 2 --bind-to socket --mca pml 'a b' -x "
        "python train.py 'a b'");
  job = Here(2);
  job.options.mpi.tcp = true;
  job.options.interfaces = {"eth0", "eth1"};
  CHECK_THAT(Line(job, kOpen4), Contains("--mca btl_tcp_if_include eth0,eth1 ") &&
                                    Contains("--mca pml ob1 --mca btl self,tcp "));
  CHECK_THAT(Line(job, kHydra), Contains("-iface eth0 "));
  const MpiCommand hydra = CommandOk(job, kHydra);
  REQUIRE(hydra.warnings.size() == 1);
  CHECK_THAT(hydra.warnings[0], Catch::StartsWith("--tcp has no effect with --mpi: "));
  for (const char* bad : {"--x 'a", "a; b", "$(date)", "a > b"}) {
    job.options.mpi.args = bad;
    INFO(bad);
    CHECK_THAT(Refusal(job, kOpen4),
               Catch::StartsWith(Format("--mpi-args '{}' is not valid", bad)));
  }
}

TEST_CASE("tags, times, files, bindings and standard input are asked for in the launcher's words") {
  Job job = Here(2);
  job.options.timestamps = true;
  job.options.log_dir = "logs";
  job.options.report_bindings = true;
  job.options.bind = BindPolicy::kCore;
  job.options.stdin_rank = 1;
  CHECK_THAT(Line(job, kOpen4),
             Contains("--tag-output --timestamp-output --output-filename logs ") &&
                 Contains("--bind-to core ") && Contains("--report-bindings ") &&
                 Contains("--stdin 1 "));
  CHECK_THAT(Line(job, kOpen5),
             Contains("--output tag,timestamp,dir=logs ") && Contains("--display bind "));
  CHECK_THAT(Line(job, kHydra), Contains("-outfile-pattern logs/rank.%r.stdout ") &&
                                    Contains("-bind-to core ") && Contains("-s 1 "));
  CHECK_THAT(Line(job, kIntel), Contains("-genv I_MPI_PIN_DOMAIN core "));
  CHECK_THAT(Line(job, kSrun), Contains("--output=logs/rank.%t.stdout ") &&
                                   Contains("--cpu-bind=cores ") && Contains("--input=1 "));
  CHECK(CommandOk(job, kOpen4).warnings.empty());
  CHECK(CommandOk(job, kHydra).warnings.size() == 2);
  job = Here(1);
  job.options.tag_lines = false;
  CHECK_THAT(Line(job, kOpen4), !Contains("tag"));
  CHECK_THAT(Line(job, kHydra), !Contains("prepend"));
}

TEST_CASE("what hvlrun does itself is refused, or said to have no effect") {
  Job job = Here(2);
  job.options.timeout = std::chrono::seconds(3);
  CHECK_THAT(Refusal(job, kOpen4), Contains("`timeout SECONDS hvlrun --mpi"));
  job = Here(2);
  job.options.max_restarts = 1;
  CHECK_THAT(Refusal(job, kOpen4), Catch::StartsWith("--max-restarts does not go with --mpi"));
  job = Here(2);
  job.options.wait_for = 1;
  CHECK_THAT(Refusal(job, kOpen4), Catch::StartsWith("--wait-for does not go with --mpi"));
  job = Here(2);
  job.options.fold = true;
  job.options.shown.ranges = {{0, 0}};
  job.options.failure_grace = std::chrono::seconds(9);
  CHECK(CommandOk(job, kOpen4).warnings.size() == 3);
}

TEST_CASE("ranks get the environment of hvlrun, and nothing that says who they are") {
  const Words inherited = {"A=1;\n2",
                           "RANK=3",
                           "HVL_RANK=3",
                           "HOROVOD_SIZE=4",
                           "HVL_SECRET_FD=7",
                           "HVL_STORE=unix:@x",
                           "BASH_FUNC_f%%=() {  :;}",
                           "OMP_NUM_THREADS=5",
                           "HOSTNAME=head",
                           "PMIX_RANK=1"};
  Job job = OnHosts(1, 1, inherited);
  job.exports = {{"B", "two words"}, {"HOSTNAME", "mine"}};
  job.options.knobs = {{"HVL_CYCLE_TIME", "2"}};
  job.options.mpi.threads_disable = true;
  const MpiCommand command = CommandOk(job, kOpen4);
  CHECK(command.env.Get("A") == "1;\n2");
  CHECK(command.env.Get("B") == "two words");
  CHECK(command.env.Get("HVL_CYCLE_TIME") == "2");
  CHECK(command.env.Get("OMP_NUM_THREADS") == "5");
  CHECK(command.env.Get("HVL_CPU_OPERATIONS") == "mpi");
  CHECK(command.env.Get("HVL_MPI_THREADS_DISABLE") == "1");
  CHECK(command.env.Get("HVL_JOB_ID").value_or("").size() == 12);
  for (const char* name : {"RANK", "HVL_RANK", "HOROVOD_SIZE", "HVL_SECRET_FD", "HVL_STORE"}) {
    INFO(name);
    CHECK_FALSE(command.env.Get(name));
  }
  // On other hosts: by name, and not what belongs to a host or cannot be named.
  const auto passes = [&command](const std::string& name) {
    const auto found = std::ranges::find(command.words, name);
    return found != command.words.end() && *(found - 1) == "-x";
  };
  for (const char* name : {"A", "B", "HVL_CPU_OPERATIONS", "HVL_JOB_ID", "HOSTNAME"}) {
    INFO(name);
    CHECK(passes(name));
  }
  CHECK_FALSE(passes("BASH_FUNC_f%%"));
  CHECK_FALSE(passes("PMIX_RANK"));
  CHECK_THAT(Line(Here(2, inherited), kOpen4), !Contains(" -x "));  // they inherit everything
  CHECK_THAT(Line(job, kHydra), !Contains(" -x "));                 // which passes everything on
}

TEST_CASE("the data plane is MPI's unless somebody says otherwise") {
  CHECK(CommandOk(Here(2, {"HVL_CPU_OPERATIONS=tcp"}), kOpen4).env.Get("HVL_CPU_OPERATIONS") ==
        "tcp");
  CHECK_FALSE(
      CommandOk(Here(2, {"HOROVOD_CPU_OPERATIONS=gloo"}), kOpen4).env.Get("HVL_CPU_OPERATIONS"));
}

TEST_CASE("a library of another MPI than the launcher's is refused") {
  const Job open = Here(2, {"HVL_MPI_LIBRARY=/x/libmpi.so.40"});
  const Job mpich = Here(2, {"HVL_MPI_LIBRARY=/x/libmpi.so.12.3.4"});
  CHECK_THAT(Refusal(open, kHydra), Contains("HVL_MPI_LIBRARY=/x/libmpi.so.40 is another MPI than "
                                             "that of /m/mpiexec"));
  CHECK_THAT(Refusal(mpich, kOpen5), Contains("every rank would be alone"));
  CommandOk(open, kOpen4);
  CommandOk(mpich, kHydra);
  CommandOk(mpich, kIntel);
  CommandOk(Here(2, {"HVL_MPI_LIBRARY=/x/libmpi.so"}), kHydra);  // who knows
}

TEST_CASE("a dry run shows the command as one would type it, and what is added") {
  const Job job = Here(1, {"A=1"});
  const std::string text = DescribeMpi(job, CommandOk(job, kOpen4));
  CHECK_THAT(text, Catch::StartsWith("/usr/bin/mpirun --tag-output -np 1 "));
  CHECK_THAT(text, Contains("python train.py 'a b'\n") && Contains("  HVL_CPU_OPERATIONS=mpi\n") &&
                       !Contains("A=1"));
}

}  // namespace
}  // namespace hvl::launcher
