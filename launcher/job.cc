#include "launcher/job.h"

#include <sched.h>

#include <cerrno>
#include <map>

#include "csrc/base/str.h"
#include "csrc/config/config.h"
#include "launcher/command.h"
#include "launcher/errors.h"
#include "launcher/file.h"
#include "launcher/network.h"

namespace hvl::launcher {
namespace {

/// Processors that this process, and so its ranks, may run on.
int ProcessorCount() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  return CPU_COUNT(&allowed);
}

Result<std::vector<HostSlots>> ReadHostfile(const std::string& path) {
  const std::optional<std::string> content = ReadFile(path);
  if (content) return ParseHostfile(*content, path);
  return Status(StatusCode::kInvalidArgument,
                Format("cannot read the host file '{}': {}", path, ErrnoText(errno)));
}

Result<std::vector<RankPlace>> Place(const Options& options) {
  std::vector<HostSlots> hosts = {{"localhost", std::nullopt}};
  if (options.hosts) {
    HVL_ASSIGN_OR_RETURN(hosts, ParseHosts(*options.hosts));
  } else if (options.hostfile) {
    HVL_ASSIGN_OR_RETURN(hosts, ReadHostfile(*options.hostfile));
  }
  HVL_RETURN_IF_ERROR(RequireThisMachine(hosts, OwnNames()));
  return PlaceRanks(hosts, options.num_proc);
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

/// Settings besides -x that flags without a knob stand for.
Status CollectExports(const Options& options, Job* job) {
  HVL_RETURN_IF_ERROR(RequireInterfaces(options.interfaces));
  if (!options.interfaces.empty()) {
    for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
      job->exports.push_back({name, Joined(options.interfaces)});
    }
  }
  job->exports.insert(job->exports.end(), options.exports.begin(), options.exports.end());
  for (const std::string& name : options.passed_on) {
    if (job->inherited.Get(name)) continue;
    job->warnings.push_back(
        Format("-x {}: this variable is not set, so nothing is passed on", name));
  }
  return Status::Ok();
}

/// A bad value is reported here once, not by every rank.
Status CheckKnobs(const EnvBlock& env) {
  std::map<std::string, std::string, std::less<>> variables;
  for (const std::string& entry : env.entries()) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return config::Config::Parse(config::MapEnv(std::move(variables)), nullptr).status();
}

Refusal Refuse(const Status& status) {
  return {status.ok() ? 0 : kExitLauncherError, status.message()};
}

}  // namespace

EnvBlock EnvironmentOf(const Job& job, int rank, const JobFacts& facts) {
  return RankEnvironment(job.inherited, job.exports, job.options.knobs,
                         job.places[static_cast<std::size_t>(rank)], facts);
}

Refusal PrepareJob(Options options, EnvBlock environment, Job* job) {
  job->options = std::move(options);
  job->inherited = std::move(environment);
  job->warnings = job->options.warnings;
  job->processor_count = ProcessorCount();
  Result<std::vector<RankPlace>> places = Place(job->options);
  if (!places.ok()) return Refuse(places.status());
  job->places = *std::move(places);
  if (const Status status = CollectExports(job->options, job); !status.ok()) return Refuse(status);

  JobFacts nothing_yet;
  nothing_yet.secret_fd = "-1";
  const EnvBlock sample = EnvironmentOf(*job, 0, nothing_yet);
  if (const Status status = CheckKnobs(sample); !status.ok()) return Refuse(status);
  if (const std::string port(sample.Get("MASTER_PORT").value_or("")); !port.empty()) {
    if (const Status status = RequireFreePort("MASTER_PORT", port); !status.ok()) {
      return Refuse(status);
    }
  }
  return FindProgram(job->options.command.front(), sample.Get("PATH").value_or(""), &job->program);
}

}  // namespace hvl::launcher
