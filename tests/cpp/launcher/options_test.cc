// The command line: what is accepted, what it means, and what the refusals say.
#include "launcher/options.h"

#include <catch2/catch.hpp>

#include <algorithm>

namespace hvl::launcher {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;

Options ParseOk(const Words& words) {
  Result<Options> options = ParseOptions(words);
  INFO(options.status().ToString());
  REQUIRE(options.ok());
  return *options;
}

Status ParseError(const Words& words) {
  const Result<Options> options = ParseOptions(words);
  REQUIRE_FALSE(options.ok());
  CHECK(options.status().message().find('\n') == std::string::npos);
  return options.status();
}

bool HasSetting(const std::vector<EnvSetting>& settings, const EnvSetting& wanted) {
  return std::find(settings.begin(), settings.end(), wanted) != settings.end();
}

TEST_CASE("the number of ranks may be spelt in every usual way") {
  for (const Words& words : {Words{"-np", "2"}, Words{"-np=2"}, Words{"-n", "2"}, Words{"-n2"},
                             Words{"--num-proc", "2"}, Words{"--num-proc=2"}}) {
    Words all = words;
    all.emplace_back("train");
    const Options options = ParseOk(all);
    CHECK(options.num_proc == 2);
    CHECK(options.command == Words{"train"});
    CHECK(options.action == Options::Action::kRun);
  }
}

TEST_CASE("everything from the command on belongs to the command") {
  CHECK(ParseOk({"-np", "1", "python", "-np", "7", "--help", "-x", "--", "--show"}).command ==
        Words{"python", "-np", "7", "--help", "-x", "--", "--show"});
  CHECK(ParseOk({"-np", "1", "--", "-odd-name", "x"}).command == Words{"-odd-name", "x"});
  CHECK(ParseOk({"-np", "1", "cmd", ""}).command == Words{"cmd", ""});
}

TEST_CASE("a value may look like an option or like a command") {
  const Options options =
      ParseOk({"-x", "A=-1", "-np", "1", "-x", "B=--help", "--log-dir", "-dir", "run"});
  CHECK(options.exports == std::vector<EnvSetting>{{"A", "-1"}, {"B", "--help"}});
  CHECK(options.log_dir == "-dir");
  CHECK(options.command == Words{"run"});
}

TEST_CASE("the last of repeated options counts") {
  CHECK(ParseOk({"-np", "1", "-np", "3", "x"}).num_proc == 3);
}

TEST_CASE("a missing or impossible number of ranks is one line with the cure") {
  CHECK_THAT(ParseError({"train"}).message(), Catch::Contains("-np 2"));
  CHECK_THAT(ParseError({}).message(), Catch::Contains("-np 2"));
  for (const char* bad : {"0", "-1", "x", "2x", "", "1.5", "9999999999"}) {
    CHECK_THAT(ParseError({"-np", bad, "train"}).message(),
               Catch::Contains("expected an integer from 1 to"));
  }
  CHECK_THAT(ParseError({"-np"}).message(), Catch::Contains("-np needs a value"));
  CHECK(ParseError({"--bind", "-np", "1", "true"}).message() ==
        "--bind needs a value, and -np is an option");
  CHECK(ParseError({"-H", "--verbose"}).message() ==
        "-H needs a value, and --verbose is an option");
  CHECK_THAT(ParseError({"-np", "2"}).message(), Catch::Contains("the command is missing"));
}

TEST_CASE("an unknown option is refused, with the nearest known one") {
  CHECK(ParseError({"-np", "1", "--shwo", "0", "x"}).message() ==
        "unknown option --shwo; did you mean --show?");
  CHECK_THAT(ParseError({"--num", "2", "x"}).message(), Catch::Contains("--num-proc?"));
  CHECK_THAT(ParseError({"-z", "x"}).message(), Catch::Contains("--help shows all"));
  CHECK_THAT(ParseError({"--completely-different", "x"}).message(),
             Catch::Contains("--help shows all"));
}

TEST_CASE("help, version and build check need nothing else") {
  CHECK(ParseOk({"--help"}).action == Options::Action::kHelp);
  CHECK_THAT(ParseOk({"-h"}).help, Catch::Contains("-np, -n, --num-proc N"));
  CHECK(ParseOk({"--version"}).action == Options::Action::kVersion);
  CHECK(ParseOk({"-v"}).action == Options::Action::kVersion);
  CHECK(ParseOk({"-cb"}).action == Options::Action::kCheckBuild);
  CHECK(ParseOk({"--check-build", "-v"}).action == Options::Action::kCheckBuild);
}

TEST_CASE("-v with a job means verbose") {
  const Options options = ParseOk({"-v", "-np", "1", "x"});
  CHECK(options.action == Options::Action::kRun);
  CHECK(options.verbose);
}

TEST_CASE("a dry run needs what a run needs") {
  CHECK(ParseOk({"--dry-run", "-np", "1", "x"}).action == Options::Action::kDryRun);
  CHECK_THAT(ParseError({"--dry-run", "x"}).message(), Catch::Contains("-np"));
}

TEST_CASE("flags of the knob table set knob and alias") {
  const Options options = ParseOk({"-np", "1", "--cache-capacity", "9", "--fusion-threshold-mb",
                                   "2", "--no-stall-check", "--log-level", "DEBUG", "x"});
  CHECK(HasSetting(options.knobs, {"HVL_CACHE_CAPACITY", "9"}));
  CHECK(HasSetting(options.knobs, {"HOROVOD_CACHE_CAPACITY", "9"}));
  CHECK(HasSetting(options.knobs, {"HVL_FUSION_THRESHOLD", "2097152"}));
  CHECK(HasSetting(options.knobs, {"HVL_STALL_CHECK_DISABLE", "1"}));
  CHECK(HasSetting(options.knobs, {"HOROVOD_LOG_LEVEL", "DEBUG"}));
  CHECK(options.warnings.empty());
}

TEST_CASE("the opposite of a switch sets the knob to its opposite") {
  const Options options = ParseOk(
      {"-np", "1", "--stall-check", "--no-timeline-mark-cycles", "--log-with-timestamp", "x"});
  CHECK(HasSetting(options.knobs, {"HVL_STALL_CHECK_DISABLE", "0"}));
  CHECK(HasSetting(options.knobs, {"HVL_TIMELINE_MARK_CYCLES", "0"}));
  CHECK(HasSetting(options.knobs, {"HVL_LOG_HIDE_TIME", "0"}));
  CHECK(HasSetting(ParseOk({"-np", "1", "--log-hide-timestamp", "x"}).knobs,
                   {"HVL_LOG_HIDE_TIME", "1"}));
  CHECK(HasSetting(ParseOk({"-np", "1", "--no-log-hide-timestamp", "x"}).knobs,
                   {"HVL_LOG_HIDE_TIME", "0"}));
}

TEST_CASE("a flag that was not given sets nothing") {
  CHECK(ParseOk({"-np", "1", "x"}).knobs.empty());
}

TEST_CASE("a bad knob is refused before anything starts") {
  CHECK_THAT(ParseError({"-np", "1", "--cache-capacity", "many", "x"}).message(),
             Catch::StartsWith("--cache-capacity many: expected an integer"));
}

TEST_CASE("horovodrun's options without effect are accepted with a warning each") {
  const Options options = ParseOk({"-np", "2", "--disable-cache", "--tcp", "--num-nccl-streams",
                                   "2", "--gloo", "--no-torus-allreduce", "x"});
  REQUIRE(options.warnings.size() == 2);  // what is switched off is off
  CHECK_THAT(options.warnings[0], Catch::StartsWith("--disable-cache has no effect: "));
  REQUIRE(options.mpi.warnings.size() == 1);  // told where the job turns out to be without MPI
  CHECK_THAT(options.mpi.warnings[0], Catch::StartsWith("--tcp has no effect: "));
  CHECK(options.command == Words{"x"});
}

TEST_CASE("horovodrun's options of later work are refused by name") {
  const std::vector<Words> later = {{"--min-np", "1"},       {"--min-num-proc", "1"},
                                    {"--max-np", "4"},       {"--host-discovery-script", "s"},
                                    {"--max-num-proc", "4"}, {"--jsrun"}};
  for (Words words : later) {
    INFO(words.front());
    words.insert(words.end(), {"-np", "2", "x"});
    const Status status = ParseError(words);
    CHECK(status.code() == StatusCode::kNotSupported);
    CHECK_THAT(status.message(), Catch::Contains("is not supported yet"));
  }
}

TEST_CASE("options that only other kinds of jobs use are said to have no effect") {
  for (Words words : std::vector<Words>{{"--slots-per-host", "1"},
                                        {"--elastic-timeout", "1"},
                                        {"--reset-limit", "1"},
                                        {"--blacklist-cooldown-range", "1", "2"}}) {
    INFO(words.front());
    words.insert(words.end(), {"-np", "2", "x"});
    const Options options = ParseOk(words);
    REQUIRE(options.warnings.size() == 1);
    CHECK_THAT(options.warnings[0], Catch::Contains(" has no effect: "));
    CHECK(options.command == Words{"x"});
  }
}

TEST_CASE("values of options without effect are checked all the same") {
  for (const Words& words : std::vector<Words>{{"--num-nccl-streams", "-1"},
                                               {"--num-nccl-streams", "two"},
                                               {"--ssh-port", "22x"},
                                               {"--ssh-port", "65536"},
                                               {"--blacklist-cooldown-range", "1", "x"},
                                               {"--autotune-gaussian-process-noise", "1.01"},
                                               {"--gloo-timeout-seconds", ""}}) {
    Words all = words;
    all.insert(all.end(), {"-np", "2", "x"});
    CHECK_THAT(ParseError(all).message(), Catch::StartsWith(words[0] + " '" + words.back()));
  }
  CHECK(ParseOk({"-np", "1", "--autotune-gaussian-process-noise", "1", "x"}).warnings.size() == 1);
}

TEST_CASE("options without effect are remembered for the configuration file") {
  CHECK(ParseOk({"-np", "1", "--gloo", "--no-torus-allreduce", "--tcp", "x"}).given ==
        Words{"--torus-allreduce", "--gloo", "--tcp"});
}

TEST_CASE("--mpi and what belongs to it are taken as they are given") {
  const Options options =
      ParseOk({"-np", "2", "--mpi", "--mpi-args", "--mca a b", "--tcp", "--binding-args",
               "--bind-to core", "--mpi-threads-disable", "x"});
  CHECK(options.mpi.wanted);
  CHECK(options.mpi.args == "--mca a b");
  CHECK(ParseOk({"-np", "2", "--mpi", "--mpi-args", "-x 'A B'", "x"}).mpi.args == "-x 'A B'");
  CHECK(ParseOk({"-np", "2", "--mpi", "--mpi-args=-np 3", "x"}).mpi.args == "-np 3");
  CHECK_THAT(ParseError({"-np", "2", "--mpi-args"}).message(),
             Catch::Contains("--mpi-args needs a value"));
  CHECK(options.mpi.binding_args == "--bind-to core");
  CHECK(options.mpi.tcp);
  CHECK(options.mpi.threads_disable);
  CHECK(options.warnings.empty());
  CHECK_FALSE(ParseOk({"-np", "2", "--mpi", "--no-mpi-threads-disable", "x"}).mpi.threads_disable);
  CHECK_FALSE(ParseOk({"-np", "2", "x"}).mpi.wanted);
  CHECK_THAT(ParseError({"-np", "2", "--gloo", "--mpi", "x"}).message(),
             Catch::Contains("--gloo and --mpi exclude each other"));
}

TEST_CASE("how other hosts are reached is taken as it is given") {
  const Options options = ParseOk({"-np", "1", "-p", "2222", "-i", "id", "--ssh-accept-new",
                                   "--remote-hvlrun", "/o/h", "--head-address", "10.0.0.1", "x"});
  CHECK(options.starter.rsh == "ssh");
  CHECK_FALSE(options.starter_given);
  CHECK(options.starter.ssh_port == 2222);
  CHECK(options.starter.ssh_identity_file == "id");
  CHECK(options.starter.ssh_accept_new);
  CHECK(options.starter.remote_hvlrun == "/o/h");
  CHECK(options.head_address == "10.0.0.1");
  CHECK(options.warnings.empty());
  CHECK(ParseOk({"-np", "1", "--rsh", "kube.sh -v", "x"}).starter.rsh == "kube.sh -v");
  CHECK_THAT(ParseError({"-np", "1", "--rsh", " ", "x"}).message(),
             Catch::Contains("names no program"));
}

TEST_CASE("a configuration file, drop-in mode and JSON reports are taken as they are given") {
  const Options options = ParseOk({"-np", "1", "--config-file", "c.yaml", "--drop-in", "x"});
  CHECK(options.config_file == "c.yaml");
  CHECK(options.drop_in);
  CHECK(ParseOk({"--check-build", "--json"}).json);
  CHECK_THAT(ParseError({"-np", "1", "--json", "x"}).message(), Catch::Contains("--check-build"));
}

TEST_CASE("the rest of horovodrun's options are known too") {
  const Options options = ParseOk({"-np",
                                   "4",
                                   "-H",
                                   "localhost:4",
                                   "--start-timeout",
                                   "30",
                                   "--network-interface",
                                   "lo",
                                   "--network-interfaces",
                                   "lo,eth0",
                                   "--output-filename",
                                   "out",
                                   "--verbose",
                                   "--cycle-time-ms",
                                   "1",
                                   "--hierarchical-allreduce",
                                   "--no-hierarchical-allgather",
                                   "--autotune-log-file",
                                   "f",
                                   "--autotune-warmup-samples",
                                   "1",
                                   "--autotune-steps-per-sample",
                                   "1",
                                   "--autotune-bayes-opt-max-samples",
                                   "1",
                                   "--autotune-gaussian-process-noise",
                                   "0.1",
                                   "--timeline-filename",
                                   "t.json",
                                   "--timeline-mark-cycles",
                                   "--stall-check-warning-time-seconds",
                                   "10",
                                   "--stall-check-shutdown-time-seconds",
                                   "20",
                                   "--mpi-threads-disable",
                                   "--tcp",
                                   "--binding-args",
                                   "b",
                                   "--thread-affinity",
                                   "0,1",
                                   "--gloo-timeout-seconds",
                                   "30",
                                   "--log-without-timestamp",
                                   "-prefix-timestamp",
                                   "x"});
  CHECK(options.hosts == "localhost:4");
  CHECK(options.log_dir == "out");
  CHECK(options.timestamps);
  CHECK(options.verbose);
  CHECK(options.interfaces == Words{"lo", "lo", "eth0"});
  CHECK(HasSetting(options.knobs, {"HOROVOD_TIMELINE", "t.json"}));
  CHECK(HasSetting(options.knobs, {"HOROVOD_THREAD_AFFINITY", "0,1"}));
  CHECK(ParseOk({"-np", "1", "-hostfile", "h", "x"}).hostfile == "h");
  CHECK(ParseOk({"-np", "1", "--prefix-output-with-timestamp", "x"}).timestamps);
}

TEST_CASE("-H and a host file exclude each other") {
  CHECK_THAT(ParseError({"-np", "1", "-H", "a:1", "--hostfile", "f", "x"}).message(),
             Catch::Contains("give one of them"));
}

TEST_CASE("-x takes values as they are and refuses what hvlrun sets itself") {
  const Options options =
      ParseOk({"-np", "1", "-x", "A=b=c\nd", "-x", "FOO.BAR=", "-x", "ONLY", "x"});
  CHECK(options.exports == std::vector<EnvSetting>{{"A", "b=c\nd"}, {"FOO.BAR", ""}});
  CHECK(options.passed_on == Words{"ONLY"});
  CHECK_THAT(ParseError({"-np", "1", "-x", "RANK=3", "x"}).message(), Catch::Contains("RANK"));
  CHECK(ParseOk({"-np", "1", "-x", "NCCL_*", "x"}).passed_on == Words{"NCCL_*"});
  CHECK_THAT(ParseError({"-np", "1", "-x", "NCCL_*=1", "x"}).message(),
             Catch::Contains("a pattern cannot be given a value"));
  CHECK_THAT(ParseError({"-np", "1", "-x", "=3", "x"}).message(), Catch::Contains("NAME=VALUE"));
}

TEST_CASE("--grace sets both times, --signal-grace the second") {
  const Options defaults = ParseOk({"-np", "1", "x"});
  CHECK(defaults.failure_grace == 1500ms);
  CHECK(defaults.signal_grace == 30s);
  const Options one = ParseOk({"-np", "1", "--grace", "0.25", "x"});
  CHECK(one.failure_grace == 250ms);
  CHECK(one.signal_grace == 250ms);
  const Options two = ParseOk({"-np", "1", "--signal-grace", "60", "--grace", "2", "x"});
  CHECK(two.failure_grace == 2s);
  CHECK(two.signal_grace == 60s);
}

TEST_CASE("times are positive, finite and not absurd") {
  CHECK(ParseOk({"-np", "1", "--timeout", "1.5", "x"}).timeout == 1500ms);
  for (const char* bad : {"0", "-1", "nan", "inf", "1s", "", "1e99"}) {
    CHECK_THAT(ParseError({"-np", "1", "--timeout", bad, "x"}).message(),
               Catch::StartsWith("--timeout"));
  }
}

TEST_CASE("ranks to show are numbers and ranges") {
  const RankSet shown = ParseOk({"-np", "9", "--show", "0,4-6", "x"}).shown;
  CHECK(shown.Contains(0));
  CHECK_FALSE(shown.Contains(1));
  CHECK(shown.Contains(5));
  CHECK_FALSE(shown.Contains(7));
  CHECK(ParseOk({"-np", "9", "x"}).shown.Contains(8));
  for (const char* bad : {"x", "1,", "3-1", "-1", "1-", "1--2"}) {
    CHECK_THAT(ParseError({"-np", "9", "--show", bad, "x"}).message(), Catch::StartsWith("--show"));
  }
}

TEST_CASE("lines are folded on request only") {
  CHECK_FALSE(ParseOk({"-np", "2", "x"}).fold);
  CHECK(ParseOk({"-np", "2", "--fold", "x"}).fold);
  CHECK(ParseOk({"-np", "2", "--fold", "x", "--fold"}).command == Words{"x", "--fold"});
}

TEST_CASE("standard input goes to one rank of the job or to none") {
  CHECK(ParseOk({"-np", "2", "--stdin", "1", "x"}).stdin_rank == 1);
  CHECK_FALSE(ParseOk({"-np", "2", "--stdin", "none", "x"}).stdin_rank.has_value());
  CHECK_THAT(ParseError({"-np", "2", "--stdin", "2", "x"}).message(),
             Catch::Contains("the ranks are 0 to 1"));
  CHECK_THAT(ParseError({"-np", "2", "--stdin", "all", "x"}).message(), Catch::Contains("or none"));
}

TEST_CASE("the kind of output is tag or none") {
  CHECK(ParseOk({"-np", "1", "x"}).tag_lines);
  CHECK_FALSE(ParseOk({"-np", "1", "--output", "none", "x"}).tag_lines);
  CHECK_THAT(ParseError({"-np", "1", "--output", "json", "x"}).message(),
             Catch::Contains("tag or none"));
}

TEST_CASE("--bind, --max-restarts and --doctor are read, and bad values are refused") {
  const Options plain = ParseOk({"-np", "1", "x"});
  CHECK(plain.bind == BindPolicy::kAuto);
  CHECK(plain.max_restarts == 0);
  const Options options = ParseOk({"-np", "1", "--bind", "core", "--max-restarts", "3", "x"});
  CHECK(options.bind == BindPolicy::kCore);
  CHECK(options.max_restarts == 3);
  CHECK(ParseOk({"--doctor", "--json"}).action == Options::Action::kDoctor);
  CHECK(ParseOptions({"-np", "1", "--max-restarts", "-1", "x"}).status().message() ==
        "--max-restarts '-1' is not valid: expected an integer from 0 to 1000");
  CHECK(ParseOptions({"-np", "1", "--bind", "all", "x"}).status().message() ==
        "--bind 'all' is not valid: expected auto, none, core or numa");
  CHECK(ParseError({"-np", "1", "--autotune=maybe", "true"}).message() ==
        "--autotune 'maybe' is not valid: expected true or false");
}

}  // namespace
}  // namespace hvl::launcher
