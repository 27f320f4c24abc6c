// A job that is ready to start: everything that can be decided, checked or refused beforehand.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/env_block.h"
#include "launcher/exit_status.h"
#include "launcher/host_plan.h"
#include "launcher/options.h"
#include "launcher/rank_env.h"

namespace hvl::launcher {

struct Job {
  Options options;
  std::vector<RankPlace> places;  ///< by rank
  std::string program;            ///< path of the command
  EnvBlock inherited;
  std::vector<EnvSetting> exports;
  int processor_count = 1;
  std::vector<std::string> warnings;
};

/// Reads the configuration and the host file, places the ranks, finds the program, checks the knobs
/// in the environment.
Refusal PrepareJob(Options options, EnvBlock environment, Job* job);

/// The environment of one rank of the job.
EnvBlock EnvironmentOf(const Job& job, int rank, const JobFacts& facts);

}  // namespace hvl::launcher
