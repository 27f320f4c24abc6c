// The environment of a rank: the user's, plus what tells the rank who it is under every name that
// training scripts look for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/env_block.h"
#include "launcher/host_plan.h"

namespace hvl::launcher {

/// What all ranks of a job share. Texts, because a dry run shows "made at start" in some places.
struct JobFacts {
  std::string job_id;
  std::string store_address;
  std::string secret_fd;
  std::string master_address;
  std::string master_port;
  int threads_per_rank = 1;  ///< that compute
  int bound_processors = 0;  ///< shared by all ranks, where each is bound to some; 0 = none is
  int restarts = 0;          ///< of this job so far
  int max_restarts = 0;
  std::string columns;  ///< of the terminal beside the tag; "" = there is none
  std::string lines;
};

/// True for the variables that hvlrun itself fills in and nobody may choose.
bool IsIdentityVariable(std::string_view name);

/// The settings of one rank, each stronger than what stands before it: the inherited environment;
/// `exports` (-x); `knobs` (flags); who the rank is. OMP_NUM_THREADS, PYTHONUNBUFFERED,
/// MASTER_ADDR, MASTER_PORT, COLUMNS, LINES and TQDM_NCOLS are defaults only: a value of the user
/// stays.
EnvBlock RankEnvironment(EnvBlock inherited, const std::vector<EnvSetting>& exports,
                         const std::vector<EnvSetting>& knobs, const RankPlace& place,
                         const JobFacts& job);

}  // namespace hvl::launcher
