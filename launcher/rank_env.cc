#include "launcher/rank_env.h"

#include <algorithm>
#include <array>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

// One number of a rank's place under the names that are in use: ours, Horovod's, torchrun's.
struct IdentityRow {
  int RankPlace::* number;
  std::array<std::string_view, 3> names;  // "" = none
};
constexpr auto kIdentityRows = std::to_array<IdentityRow>({
    {&RankPlace::rank, {"HVL_RANK", "HOROVOD_RANK", "RANK"}},
    {&RankPlace::size, {"HVL_SIZE", "HOROVOD_SIZE", "WORLD_SIZE"}},
    {&RankPlace::local_rank, {"HVL_LOCAL_RANK", "HOROVOD_LOCAL_RANK", "LOCAL_RANK"}},
    {&RankPlace::local_size, {"HVL_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE"}},
    {&RankPlace::cross_rank, {"HVL_CROSS_RANK", "HOROVOD_CROSS_RANK", ""}},
    {&RankPlace::cross_size, {"HVL_CROSS_SIZE", "HOROVOD_CROSS_SIZE", ""}},
});
constexpr auto kJobNames =
    std::to_array<std::string_view>({"HVL_JOB_ID", "HVL_STORE", "HVL_SECRET_FD", "HVL_STATUS_FD",
                                     "HVL_LOCAL_PROCESSORS", "HOROVOD_HOSTNAME"});

}  // namespace

bool IsIdentityVariable(std::string_view name) {
  if (name.empty()) return false;
  if (std::find(kJobNames.begin(), kJobNames.end(), name) != kJobNames.end()) return true;
  return std::any_of(kIdentityRows.begin(), kIdentityRows.end(), [name](const IdentityRow& row) {
    return std::find(row.names.begin(), row.names.end(), name) != row.names.end();
  });
}

EnvBlock RankEnvironment(EnvBlock inherited, const std::vector<EnvSetting>& exports,
                         const std::vector<EnvSetting>& knobs, const RankPlace& place,
                         const JobFacts& job) {
  EnvBlock env = std::move(inherited);
  for (const EnvSetting& setting : exports) env.Set(setting.name, setting.value);
  for (const EnvSetting& setting : knobs) env.Set(setting.name, setting.value);
  for (const IdentityRow& row : kIdentityRows) {
    for (const std::string_view name : row.names) {
      if (!name.empty()) env.Set(name, Format("{}", place.*row.number));
    }
  }
  env.Set("HOROVOD_HOSTNAME", place.host);
  env.Set("HVL_JOB_ID", job.job_id);
  env.Set("HVL_STORE", job.store_address);
  env.Set("HVL_SECRET_FD", job.secret_fd);
  if (job.max_restarts > 0) {
    env.Set("HVL_RUN_RESTART_COUNT", Format("{}", job.restarts));
    env.Set("TORCHELASTIC_RESTART_COUNT", Format("{}", job.restarts));
    env.Set("TORCHELASTIC_MAX_RESTARTS", Format("{}", job.max_restarts));
  }
  env.SetIfMissing("MASTER_ADDR", job.master_address);
  env.SetIfMissing("MASTER_PORT", job.master_port);
  env.SetIfMissing("PYTHONUNBUFFERED", "1");
  if (!job.columns.empty()) {
    env.SetIfMissing("COLUMNS", job.columns);
    env.SetIfMissing("LINES", job.lines);
    env.SetIfMissing("TQDM_NCOLS", job.columns);  // tqdm asks the descriptor, which is a pipe
  }
  env.SetIfMissing("OMP_NUM_THREADS", Format("{}", job.threads_per_rank));
  // A rank that sees its own few processors only would think that the ranks outnumber them.
  env.Set("HVL_LOCAL_PROCESSORS", Format("{}", job.bound_processors));
  return env;
}

}  // namespace hvl::launcher
