// hvlrun: starts the ranks of a job on this machine and watches over them.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "launcher/check_build.h"
#include "launcher/front.h"
#include "launcher/job.h"
#include "launcher/options.h"
#include "launcher/report.h"

namespace {

using namespace hvl::launcher;  // NOLINT(google-build-using-namespace): this is its program

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

int Run(Options options, EnvBlock environment, const CommandLine& command_line) {
  const bool dry = options.action == Options::Action::kDryRun;
  Job job;
  const Refusal refusal = PrepareJob(std::move(options), std::move(environment), &job);
  if (refusal.exit_code != 0) return Refuse(refusal.exit_code, refusal.message);
  if (!dry) return RunJob(job, command_line);
  Warn(job.warnings);
  return Print(DryRun(job));
}

}  // namespace

int main(int argc, char** argv, char** envp) {
  if (!OpenStandardStreams()) return kExitLauncherError;
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
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
    case Options::Action::kRun:
    case Options::Action::kDryRun:
      break;
  }
  return Run(*std::move(options), std::move(environment), {.argv = argv, .argc = argc});
}
