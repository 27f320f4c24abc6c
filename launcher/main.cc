// hvlrun: starts the ranks of a job on this machine and watches over them.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "launcher/agent.h"
#include "launcher/attempts.h"
#include "launcher/check_build.h"
#include "launcher/doctor.h"
#include "launcher/door.h"
#include "launcher/front.h"
#include "launcher/host_facts.h"
#include "launcher/job.h"
#include "launcher/join.h"
#include "launcher/mpi_start.h"
#include "launcher/options.h"
#include "launcher/report.h"
#include "launcher/survey.h"

namespace {

using namespace hvl::launcher;  // NOLINT(google-build-using-namespace): this is its program

// Pods of one job may start minutes apart, while images are loaded.
constexpr hvl::Duration kJoinPatience = std::chrono::minutes(10);

/// Started with a standard stream closed, the next file that is opened would become that stream.
bool OpenStandardStreams() {
  int fd = -1;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd < 0) return false;
  ::close(fd);
  return true;
}

int Refuse(int exit_code, const std::string& message) {
  std::fputs(hvl::Format("hvlrun: {}\n", message).c_str(), stderr);
  return exit_code;
}

/// 0, or 125 when nobody takes the text.
int Print(const std::string& text) {
  const bool printed = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return printed ? 0 : kExitLauncherError;
}

void Warn(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) Refuse(0, warning);
}

/// For as many ranks as asked for, or as there are cores.
std::vector<Finding> ExamineHost(const Options& options, const EnvBlock& environment) {
  const HostFacts facts = CollectHostFacts(options, environment);
  const int cores = std::max(1, static_cast<int>(facts.cores.size()));
  const int ranks = options.num_proc > 0 ? options.num_proc : cores;
  return Examine(facts, ranks, std::max(1, cores / ranks));
}

int DoctorHosts(const Job& job) {
  const hvl::Result<std::vector<HostReport>> reports = SurveyHosts(job);
  if (!reports.ok()) return Refuse(kExitLauncherError, reports.status().message());
  const int printed =
      Print(job.options.json ? SurveyJson(*reports) : SurveyText(*reports, job.options.verbose));
  if (printed != 0) return printed;
  return HasFailure(*reports) ? kExitUnfit : 0;
}

int Doctor(const Options& options, const EnvBlock& environment) {
  Job job;
  if (const hvl::Status status = PrepareSurvey(options, environment, &job); !status.ok()) {
    return Refuse(kExitLauncherError, status.message());
  }
  if (!job.hosts.empty()) return DoctorHosts(job);
  const std::vector<Finding> findings = ExamineHost(options, environment);
  const int printed = Print(options.json ? DoctorJson(findings) : DoctorText(findings));
  if (printed != 0) return printed;
  return HasFailure(findings) ? kExitUnfit : 0;
}

int ServeAsAgent(char** envp, const CommandLine& command_line) {
  return RunSupervised({.title = "hvl-agent",
                        .reads_terminal = false,
                        .run =
                            [envp](hvl::net::UniqueFd front) {
                              return RunAgent({.from_head = hvl::net::UniqueFd(STDIN_FILENO),
                                               .to_head = hvl::net::UniqueFd(STDOUT_FILENO),
                                               .front = std::move(front),
                                               .own = EnvBlock(envp),
                                               .shared_secret = std::nullopt,
                                               .keys = std::nullopt});
                            }},
                       command_line);
}

int Join(const Options& options, const EnvBlock& environment, const CommandLine& command_line) {
  const hvl::Result<hvl::net::HostPort> head = ParseDoor("--join", options.join, "");
  if (!head.ok()) return Refuse(kExitLauncherError, head.status().message());
  const hvl::Result<hvl::net::Secret> secret = ReadSharedSecret(environment);
  if (!secret.ok()) return Refuse(kExitLauncherError, secret.status().message());
  const JoinOptions join{.head = *head, .patience = options.timeout.value_or(kJoinPatience)};
  return RunSupervised({.title = "hvl-agent",
                        .reads_terminal = false,
                        .run =
                            [&](hvl::net::UniqueFd front) {
                              return JoinHead(join, *secret, environment, std::move(front));
                            }},
                       command_line);
}

/// 0 = start. `host` is "" for this machine.
int TellFindings(const std::string& host, const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    if (finding.level == Finding::Level::kOk) continue;
    const std::string who = host.empty() ? "" : hvl::Format("host {}: ", host);
    Refuse(0, hvl::Format("preflight: {}{}: {} -> {}", who, finding.topic, finding.text,
                          finding.cure));
  }
  return HasFailure(findings) ? kExitLauncherError : 0;
}

int Preflight(const Job& job) {
  if (job.hosts.empty()) {
    const int code = TellFindings("", ExamineHost(job.options, job.inherited));
    return code == 0 ? 0 : Refuse(code, "preflight: this machine cannot run the job");
  }
  const hvl::Result<std::vector<HostReport>> reports = SurveyHosts(job);
  if (!reports.ok()) return Refuse(kExitLauncherError, reports.status().message());
  int code = 0;
  for (const HostReport& report : *reports) {
    if (TellFindings(report.host, report.findings) != 0) code = kExitLauncherError;
  }
  return code == 0 ? 0 : Refuse(code, "preflight: not all hosts can run the job");
}

/// Does not return where everything goes well and this is no dry run.
int RunByMpi(const Job& job, bool dry) {
  hvl::Result<MpiLauncher> launcher = FindMpi(job.inherited);
  if (!launcher.ok()) return Refuse(kExitLauncherError, launcher.status().message());
  hvl::Result<MpiCommand> command = MpiCommandOf(job, *launcher, ::geteuid() == 0);
  if (!command.ok()) return Refuse(kExitLauncherError, command.status().message());
  Warn(job.warnings);
  Warn(command->warnings);
  if (dry) return Print(DescribeMpi(job, *command));
  if (job.options.verbose) {
    Refuse(0, hvl::Format("{} ({}) starts the ranks:", launcher->program, launcher->version));
    std::fputs(DescribeMpi(job, *command).c_str(), stderr);
  }
  const Refusal refusal = BecomeMpi(*std::move(command), job.options.stdin_rank.has_value());
  return Refuse(refusal.exit_code, refusal.message);
}

int Run(Options options, EnvBlock environment, const CommandLine& command_line) {
  const bool dry = options.action == Options::Action::kDryRun;
  Job job;
  const Refusal refusal = PrepareJob(std::move(options), std::move(environment), &job);
  if (refusal.exit_code != 0) return Refuse(refusal.exit_code, refusal.message);
  if (job.options.preflight) {
    if (const int code = Preflight(job); code != 0) return code;
  }
  if (job.options.mpi.wanted) return RunByMpi(job, dry);
  if (!dry) {
    return RunSupervised(
        {.title = "hvl-supervisor",
         .reads_terminal = job.options.stdin_rank.has_value(),
         .run = [&job](hvl::net::UniqueFd front) { return RunAttempts(job, std::move(front)); }},
        command_line);
  }
  Warn(job.warnings);
  return Print(DryRun(job));
}

}  // namespace

int main(int argc, char** argv, char** envp) {
  if (!OpenStandardStreams()) return kExitLauncherError;
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const CommandLine command_line{.argv = argv, .argc = argc};
  // Not for people: how hvlrun calls itself on the other hosts of a job.
  if (arguments == std::vector<std::string>{"--agent"}) return ServeAsAgent(envp, command_line);
  hvl::Result<Options> options = ParseOptions(arguments);
  if (!options.ok()) return Refuse(kExitLauncherError, options.status().message());
  EnvBlock environment(envp);
  switch (options->action) {
    case Options::Action::kHelp:
      return Print(options->help);
    case Options::Action::kVersion:
      return Print(hvl::Format("hvlrun {}\n", HVL_VERSION));
    case Options::Action::kCheckBuild:
      Warn(options->warnings);
      return Print(options->json ? BuildJson(CollectBuildFacts(environment))
                                 : BuildText(CollectBuildFacts(environment)));
    case Options::Action::kDoctor:
      Warn(options->warnings);
      return Doctor(*options, environment);
    case Options::Action::kJoin:
      return Join(*options, environment, command_line);
    case Options::Action::kRun:
    case Options::Action::kDryRun:
      break;
  }
  return Run(*std::move(options), std::move(environment), command_line);
}
