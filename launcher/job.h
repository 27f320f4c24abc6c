// A job that is ready to start: everything that can be decided, checked or refused beforehand.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "csrc/net/secret.h"
#include "horovodlite/status.h"
#include "launcher/agent_link.h"
#include "launcher/binding.h"
#include "launcher/env_block.h"
#include "launcher/exit_status.h"
#include "launcher/host_plan.h"
#include "launcher/options.h"
#include "launcher/rank_env.h"
#include "launcher/topology.h"

namespace hvl::launcher {

struct Job {
  Options options;
  std::vector<RankPlace> places;  ///< by rank
  /// Where the ranks run by agents; empty when all run on this machine.
  std::vector<HostRanks> hosts;
  /// Where agents come by themselves: what they and the head share. The names of hosts are filled
  /// in when they are there.
  std::optional<net::Secret> shared_secret;
  std::string folder;   ///< working directory; for agents
  std::string program;  ///< path of the command; on this machine
  EnvBlock inherited;   ///< by hvlrun
  EnvBlock base;        ///< what ranks inherit of it
  std::vector<EnvSetting> exports;
  Topology cores;  ///< that the ranks may use
  Binding binding;
  std::vector<std::string> warnings;
  TimePoint start{};  ///< of the first attempt: --timeout counts from here
};

/// Reads the configuration and the host file, places the ranks, finds the program, checks the knobs
/// in the environment.
Refusal PrepareJob(Options options, EnvBlock environment, Job* job);

/// For an examination: the hosts, also where the number of ranks (then that of the slots) or the
/// command is missing. The job has no hosts when they are all this machine.
Status PrepareSurvey(Options options, EnvBlock environment, Job* job);

/// Gives the hosts that have come these names, and the ranks their places.
void NameHosts(const std::vector<std::string>& names, Job* job);

/// How the agent on this host is started.
Result<Starter> StarterOf(const Job& job, const HostRanks& host);

/// The environment of one rank of the job.
EnvBlock EnvironmentOf(const Job& job, int rank, const JobFacts& facts);

/// Those that the rank is bound to; empty = as hvlrun itself.
Processors ProcessorsOf(const Job& job, int rank);
/// How many processors all ranks share, where each is bound to some of them; else 0.
int BoundProcessors(const Job& job);

}  // namespace hvl::launcher
