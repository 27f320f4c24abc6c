#include "launcher/job.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "csrc/base/str.h"
#include "csrc/config/config.h"
#include "launcher/allocation.h"
#include "launcher/command.h"
#include "launcher/config_file.h"
#include "launcher/control_group.h"
#include "launcher/door.h"
#include "launcher/drop_in.h"
#include "launcher/errors.h"
#include "launcher/file.h"
#include "launcher/host_env.h"
#include "launcher/network.h"

namespace hvl::launcher {
namespace {

Result<std::vector<HostSlots>> ReadHostfile(const std::string& path) {
  const std::optional<std::string> content = ReadFile(path);
  if (content) return ParseHostfile(*content, path);
  return Status(StatusCode::kInvalidArgument,
                Format("cannot read the host file '{}': {}", path, ErrnoText(errno)));
}

/// As many hosts as agents will come, with equal shares of the ranks but for one.
Result<std::vector<HostSlots>> Shares(int num_proc, int host_count) {
  if (host_count > num_proc) {
    return Invalid(
        Format("--wait-for {} is more hosts than the {} ranks of -np", host_count, num_proc));
  }
  std::vector<HostSlots> hosts;
  for (int i = 0; i < host_count; ++i) {
    const int slots = num_proc / host_count + (i < num_proc % host_count ? 1 : 0);
    hosts.push_back({.host = Format("host{}", i), .slots = slots});
  }
  return hosts;
}

/// Those of the options; else those of the batch system, with its way to reach them.
Result<std::vector<HostSlots>> NamedHosts(Job* job) {
  Options& options = job->options;
  if (options.wait_for > 0) return Shares(options.num_proc, options.wait_for);
  if (options.hosts) return ParseHosts(*options.hosts);
  if (options.hostfile) return ReadHostfile(*options.hostfile);
  HVL_ASSIGN_OR_RETURN(std::optional<Allocation> found, FindAllocation(job->inherited));
  if (!found) return std::vector<HostSlots>{{"localhost", std::nullopt}};
  if (!options.starter_given) options.starter.rsh = found->rsh;
  if (options.verbose) {
    job->warnings.push_back(Format("the hosts are those of {}; -H names others", found->system));
  }
  return std::move(found->hosts);
}

Status Place(const std::vector<HostSlots>& hosts, Job* job) {
  HVL_ASSIGN_OR_RETURN(job->places, PlaceRanks(hosts, job->options.num_proc));
  std::vector<HostRanks> found = HostsOf(job->places, hosts, OwnNames());
  const bool all_here = std::all_of(found.begin(), found.end(),
                                    [](const HostRanks& host) { return host.is_this_machine; });
  if (!all_here) job->hosts = std::move(found);
  return Status::Ok();
}

/// The working directory as the user named it: through links that exist on all hosts, maybe.
std::string WorkingFolder(const EnvBlock& env) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::current_path(failed);
  std::string named(env.Get("PWD").value_or(""));
  if (named.starts_with('/') && std::filesystem::equivalent(named, real, failed)) return named;
  return real.string();
}

Result<std::string> OwnPath() {
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (!failed) return program.string();
  return Invalid(
      Format("hvlrun cannot tell where it is installed: /proc/self/exe: {}", failed.message()));
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

/// What the command line leaves open, the file may say.
void MergeMpi(const MpiChoice& file, MpiChoice* choice) {
  choice->wanted = choice->wanted || file.wanted;
  if (choice->args.empty()) choice->args = file.args;
  if (choice->binding_args.empty()) choice->binding_args = file.binding_args;
  choice->tcp = choice->tcp || file.tcp;
  choice->threads_disable = choice->threads_disable || file.threads_disable;
  choice->warnings.insert(choice->warnings.end(), file.warnings.begin(), file.warnings.end());
}

/// Adds what the configuration file says to the settings, unless -x says something about it. (The
/// flags come last and win anyway.)
Status ReadConfigFile(const Options& options, Job* job) {
  if (!options.config_file) return Status::Ok();
  const std::optional<std::string> content = ReadFile(*options.config_file);
  if (!content) {
    return Invalid(Format("cannot read the configuration file '{}': {}", *options.config_file,
                          ErrnoText(errno)));
  }
  HVL_ASSIGN_OR_RETURN(const FileSettings file,
                       ParseConfigFile(*content, *options.config_file, options.given));
  job->warnings.insert(job->warnings.end(), file.warnings.begin(), file.warnings.end());
  MergeMpi(file.mpi, &job->options.mpi);
  const auto exported = [&options](const EnvSetting& setting) {
    return std::any_of(options.exports.begin(), options.exports.end(),
                       [&setting](const EnvSetting& x) { return x.name == setting.name; });
  };
  for (const std::vector<EnvSetting>& knob : file.knobs) {
    if (std::any_of(knob.begin(), knob.end(), exported)) continue;
    job->exports.insert(job->exports.end(), knob.begin(), knob.end());
  }
  return Status::Ok();
}

/// Once all other settings are known.
Status AddDropIn(Job* job) {
  if (!job->options.drop_in) return Status::Ok();
  HVL_ASSIGN_OR_RETURN(const std::string program, OwnPath());
  HVL_ASSIGN_OR_RETURN(const std::string site, DropInSite(program));
  const std::vector<EnvSetting> settings = DropInSettings(site, EnvironmentOf(*job, 0, {}));
  job->exports.insert(job->exports.end(), settings.begin(), settings.end());
  return Status::Ok();
}

/// The settings of all ranks, besides those of the flags.
Status CollectExports(const Options& options, Job* job) {
  HVL_RETURN_IF_ERROR(ReadConfigFile(options, job));
  const MpiChoice& mpi = job->options.mpi;
  if (!mpi.wanted) {
    job->warnings.insert(job->warnings.end(), mpi.warnings.begin(), mpi.warnings.end());
  }
  // Other hosts may have others; there the runtime checks them.
  if (job->hosts.empty()) HVL_RETURN_IF_ERROR(RequireInterfaces(options.interfaces));
  if (!options.interfaces.empty()) {
    if (!job->hosts.empty()) job->exports.push_back({"HVL_NETWORK", Joined(options.interfaces)});
    for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
      job->exports.push_back({name, Joined(options.interfaces)});
    }
  }
  job->exports.insert(job->exports.end(), options.exports.begin(), options.exports.end());
  for (const std::string& name : options.passed_on) {
    if (job->inherited.HasMatch(name)) continue;
    job->warnings.push_back(
        IsPattern(name)
            ? Format("-x '{}': no variable of this name is set, so nothing is passed on", name)
            : Format("-x {}: this variable is not set, so nothing is passed on", name));
  }
  return AddDropIn(job);
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
  return RankEnvironment(job.base, job.exports, job.options.knobs,
                         job.places[static_cast<std::size_t>(rank)], facts);
}

Processors ProcessorsOf(const Job& job, int rank) {
  if (!job.binding.bound()) return {};
  return job.binding.by_rank[static_cast<std::size_t>(rank)];
}

int BoundProcessors(const Job& job) {
  if (!job.binding.bound()) return 0;
  std::size_t count = 0;
  for (const Core& core : job.cores) count += core.processors.size();
  return static_cast<int>(count);
}

void NameHosts(const std::vector<std::string>& names, Job* job) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    HostRanks& host = job->hosts[i];
    host.host = names[i];
    for (int rank = host.first_rank; rank < host.first_rank + host.rank_count; ++rank) {
      job->places[static_cast<std::size_t>(rank)].host = names[i];
    }
  }
}

Result<Starter> StarterOf(const Job& job, const HostRanks& host) {
  StarterOptions options = job.options.starter;
  HVL_ASSIGN_OR_RETURN(const std::string own, OwnPath());
  if (host.is_this_machine) return Starter{.program = own, .arguments = {own, "--agent"}};
  if (options.remote_hvlrun.empty()) options.remote_hvlrun = own;
  Starter starter{.program = "", .arguments = StarterCommand(options, host.user, host.host)};
  const std::string& name = starter.arguments.front();
  const Refusal refusal =
      FindProgram(name, job.inherited.Get("PATH").value_or(""), &starter.program);
  if (refusal.exit_code == 0) return starter;
  return Invalid(Format("'{}', by which host {} is reached: {}; --rsh names another program", name,
                        host.host, refusal.message));
}

namespace {

/// Where all ranks run on this machine.
Refusal PrepareHere(const EnvBlock& sample, Job* job) {
  job->cores = ReadTopology("/sys/devices/system", AllowedProcessors());
  job->binding = BindRanks(job->cores, job->options.bind, job->options.num_proc, ProcessorQuota());
  const bool wanted =
      job->options.bind == BindPolicy::kCore || job->options.bind == BindPolicy::kNuma;
  if (wanted && !job->binding.bound()) {
    job->warnings.push_back(Format("--bind: ranks are not bound: {}", job->binding.reason));
  }
  if (const std::string port(sample.Get("MASTER_PORT").value_or("")); !port.empty()) {
    if (const Status status = RequireFreePort("MASTER_PORT", port); !status.ok()) {
      return Refuse(status);
    }
  }
  return FindProgram(job->options.command.front(), sample.Get("PATH").value_or(""), &job->program);
}

/// Where agents start them.
Status PrepareHosts(Job* job) {
  if (job->options.stdin_rank) {
    return Invalid(
        "--stdin goes with jobs on this machine only: the standard input of agents "
        "is their line to hvlrun");
  }
  if (job->options.wait_for > 0) {
    if (job->options.max_restarts > 0) {
      return Invalid("--max-restarts does not go with --wait-for: agents end with their job");
    }
    HVL_ASSIGN_OR_RETURN(job->shared_secret, ReadSharedSecret(job->inherited));
    return Status::Ok();
  }
  for (const HostRanks& host : job->hosts) HVL_RETURN_IF_ERROR(StarterOf(*job, host).status());
  return Status::Ok();
}

}  // namespace

Status PrepareSurvey(Options options, EnvBlock environment, Job* job) {
  job->options = std::move(options);
  job->inherited = std::move(environment);
  job->folder = WorkingFolder(job->inherited);
  job->base = WithoutHostVariables(job->inherited, job->options.exports);
  job->exports = job->options.exports;
  HVL_ASSIGN_OR_RETURN(std::vector<HostSlots> hosts, NamedHosts(job));
  if (job->options.num_proc == 0) {
    for (HostSlots& host : hosts) {
      if (!host.slots) host.slots = 1;
      job->options.num_proc += *host.slots;
    }
  }
  return Place(hosts, job);
}

Refusal PrepareJob(Options options, EnvBlock environment, Job* job) {
  job->options = std::move(options);
  job->inherited = std::move(environment);
  job->warnings = job->options.warnings;
  job->start = SteadyClock().Now();
  job->folder = WorkingFolder(job->inherited);
  const Result<std::vector<HostSlots>> hosts = NamedHosts(job);
  if (!hosts.ok()) return Refuse(hosts.status());
  if (const Status status = Place(*hosts, job); !status.ok()) return Refuse(status);
  job->base = job->hosts.empty() ? job->inherited
                                 : WithoutHostVariables(job->inherited, job->options.exports);
  if (const Status status = CollectExports(job->options, job); !status.ok()) return Refuse(status);

  JobFacts nothing_yet;
  nothing_yet.secret_fd = "-1";
  const EnvBlock sample = EnvironmentOf(*job, 0, nothing_yet);
  if (const Status status = CheckKnobs(sample); !status.ok()) return Refuse(status);
  if (job->options.mpi.wanted && !job->hosts.empty()) return {};  // MPI reaches them in its own way
  if (job->hosts.empty()) return PrepareHere(sample, job);
  return Refuse(PrepareHosts(job));
}

}  // namespace hvl::launcher
