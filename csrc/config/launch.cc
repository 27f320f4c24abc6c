#include "csrc/config/launch.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/config/knob_kinds.h"
#include "csrc/config/setting.h"

namespace hvl::config {
namespace {

/// Names of variables; a row uses as many as it has.
using Names = std::array<std::string_view, 3>;

/// What one launcher sets for the processes that it starts.
struct Family {
  Launcher launcher;
  std::string_view title;
  std::string_view rank;
  Names size;  ///< the first that is set counts
  std::string_view local_rank;
  Names local_size;         ///< likewise
  std::string_view sign;    ///< only with this one do the others come from this launcher
  Names job;                ///< together they tell jobs apart
  std::string_view parent;  ///< Launch::parent
};

/// The first of those that agree is used, so what knows more stands before what knows less. Open
/// MPI 4 numbers jobs by 16 bits, hence the address of its mpirun as well.
constexpr auto kFamilies = std::to_array<Family>({
    {Launcher::kOpenMpi,
     "Open MPI",
     "OMPI_COMM_WORLD_RANK",
     {"OMPI_COMM_WORLD_SIZE"},
     "OMPI_COMM_WORLD_LOCAL_RANK",
     {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     "",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"},
     ""},
    {Launcher::kSlurm,
     "Slurm",
     "SLURM_PROCID",
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     "SLURM_LOCALID",
     {},
     "SLURM_STEP_ID",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     ""},
    {Launcher::kHydra,
     "MPI (Hydra)",
     "PMI_RANK",
     {"PMI_SIZE"},
     "MPI_LOCALRANKID",
     {"MPI_LOCALNRANKS"},
     "",
     {},
     "hydra_pmi_proxy"},
    {Launcher::kTorchrun,
     "torchrun",
     "RANK",
     {"WORLD_SIZE"},
     "LOCAL_RANK",
     {"LOCAL_WORLD_SIZE"},
     "TORCHELASTIC_RUN_ID",
     {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"},
     ""},
    {Launcher::kEnvironment,
     "the environment",
     "RANK",
     {"WORLD_SIZE"},
     "LOCAL_RANK",
     {"LOCAL_WORLD_SIZE", "LOCAL_SIZE"},
     "",
     {"MASTER_PORT"},
     ""},
});

std::optional<Setting> FindFirst(const EnvSource& env, const Names& names) {
  for (const std::string_view name : names) {
    if (std::optional<Setting> setting = FindSetting(env, name)) return setting;
  }
  return std::nullopt;
}

constexpr int kMost = 1048576;  // as HVL_SIZE

Result<int> Number(const Setting& setting, int low) {
  if (const std::optional<int> number = kinds::Int::Parse(setting.value, low, kMost)) {
    return *number;
  }
  return Status(StatusCode::kInvalidArgument,
                Format("{}='{}' is not valid: expected {}; HVL_LAUNCHER=none makes this process a "
                       "world of its own",
                       setting.name, setting.value, kinds::Int::Range(low, kMost)));
}

/// What a launcher says of this process.
struct Place {
  const Family* family = nullptr;
  int rank = 0, size = 1;
  std::string variables;
};

/// The batch script, the interactive shell and the like are "steps" too, with numbers from the
/// upper end of 32 bits.
bool IsStepOfSrun(const std::string& step) {
  return kinds::Int::Parse(step, 0, std::numeric_limits<int>::max()).has_value();
}

bool IsSignSet(const EnvSource& env, const Family& family) {
  if (family.sign.empty()) return true;
  const std::optional<Setting> sign = FindSetting(env, family.sign);
  return sign && (family.launcher != Launcher::kSlurm || IsStepOfSrun(sign->value));
}

/// Nothing when this launcher did not start the process.
Result<std::optional<Place>> PlaceOf(const EnvSource& env, const Family& family) {
  const std::optional<Setting> rank = FindSetting(env, family.rank);
  const std::optional<Setting> size = FindFirst(env, family.size);
  if ((!rank && !size) || !IsSignSet(env, family)) return std::optional<Place>();
  if (!rank || !size) {
    return Status(StatusCode::kInvalidArgument,
                  Format("{} is set but {} is not, and {} sets both; set it too, or "
                         "HVL_LAUNCHER=none to make this process a world of its own",
                         rank ? rank->Text() : size->Text(),
                         rank ? family.size.front() : family.rank, family.title));
  }
  Place place{.family = &family, .variables = Format("{} and {}", rank->Text(), size->Text())};
  HVL_ASSIGN_OR_RETURN(place.rank, Number(*rank, 0));
  HVL_ASSIGN_OR_RETURN(place.size, Number(*size, 1));
  if (place.rank >= place.size) {
    return Status(
        StatusCode::kInvalidArgument,
        Format("{} must be less than {}; ranks count from 0", rank->Text(), size->Text()));
  }
  return std::optional(std::move(place));
}

bool Agree(const Place& a, const Place& b) { return a.rank == b.rank && a.size == b.size; }

Status Disagreement(const Place& a, const Place& b) {
  return {StatusCode::kInvalidArgument,
          Format("two launchers disagree about this process: it is rank {} of {} for {} ({}), but "
                 "rank {} of {} for {} ({}). Start the ranks with one of them, or name the one to "
                 "believe with HVL_LAUNCHER={} or HVL_LAUNCHER={}",
                 a.rank, a.size, a.family->title, a.variables, b.rank, b.size, b.family->title,
                 b.variables, kinds::Launchers::Print(a.family->launcher),
                 kinds::Launchers::Print(b.family->launcher))};
}

/// All places that count, by the order of the table: they agree.
Result<std::vector<Place>> Places(const EnvSource& env, Launcher wanted) {
  std::vector<Place> places;
  for (const Family& family : kFamilies) {
    if (wanted != Launcher::kAuto && wanted != family.launcher) continue;
    HVL_ASSIGN_OR_RETURN(std::optional<Place> place, PlaceOf(env, family));
    if (place) places.push_back(*std::move(place));
  }
  const auto is_slurm = [](const Place& place) {
    return place.family->launcher == Launcher::kSlurm;
  };
  const bool slurm_gives_way =
      std::ranges::any_of(places, is_slurm) && std::ranges::any_of(places, [&](const Place& place) {
        return !Agree(place, *std::ranges::find_if(places, is_slurm));
      });
  if (slurm_gives_way) std::erase_if(places, is_slurm);
  for (const Place& place : places) {
    if (!Agree(places.front(), place)) return Disagreement(places.front(), place);
  }
  if (places.empty() && wanted != Launcher::kAuto) {
    return Status(StatusCode::kInvalidArgument,
                  Format("HVL_LAUNCHER={}, but the variables of this launcher are not set; start "
                         "the process with it, or leave HVL_LAUNCHER out",
                         kinds::Launchers::Print(wanted)));
  }
  return places;
}

/// "4(x2),3" and node 2 -> 3: how many tasks of a Slurm step run on a node.
std::optional<int> TasksOfNode(std::string_view counts, int node) {
  while (!counts.empty()) {
    const std::string_view entry = counts.substr(0, counts.find(','));
    counts.remove_prefix(std::min(entry.size() + 1, counts.size()));
    const std::size_t open = entry.find("(x");
    std::optional<int> repeats = 1;
    if (open != std::string_view::npos) {
      if (!entry.ends_with(')')) return std::nullopt;
      repeats = kinds::Int::Parse(entry.substr(open + 2, entry.size() - open - 3), 1, kMost);
    }
    const std::optional<int> tasks = kinds::Int::Parse(entry.substr(0, open), 1, kMost);
    if (!tasks || !repeats) return std::nullopt;
    if (node < *repeats) return tasks;
    node -= *repeats;
  }
  return std::nullopt;
}

std::optional<Setting> LocalSize(const EnvSource& env, const Family& family) {
  if (family.launcher != Launcher::kSlurm) return FindFirst(env, family.local_size);
  const std::optional<Setting> counts =
      FindFirst(env, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const std::optional<Setting> node = FindSetting(env, "SLURM_NODEID");
  if (!counts || !node) return std::nullopt;
  const std::optional<int> index = kinds::Int::Parse(node->value, 0, kMost);
  const std::optional<int> tasks = index ? TasksOfNode(counts->value, *index) : std::nullopt;
  if (!tasks) return std::nullopt;
  return Setting{counts->name, Format("{}", *tasks)};
}

/// As with our own names, all ranks are on this host where the local pair is not known.
Status CompletePlace(const EnvSource& env, const Place& place, Config* config, bool* knows_host) {
  config->rank = config->local_rank = place.rank;
  config->size = config->local_size = place.size;
  const std::optional<Setting> rank = FindSetting(env, place.family->local_rank);
  const std::optional<Setting> size = LocalSize(env, *place.family);
  *knows_host = rank && size;
  if (!*knows_host) return Status::Ok();
  HVL_ASSIGN_OR_RETURN(config->local_rank, Number(*rank, 0));
  HVL_ASSIGN_OR_RETURN(config->local_size, Number(*size, 1));
  if (config->local_rank < config->local_size && config->local_size <= config->size) {
    return Status::Ok();
  }
  return {StatusCode::kInvalidArgument,
          Format("{} and {} contradict each other or {}: the local rank must be less than the "
                 "local size, and that at most the size",
                 rank->Text(), size->Text(), place.variables)};
}

std::string JobOf(const EnvSource& env, const Names& names) {
  std::string job;
  for (const std::string_view name : names) {
    const std::optional<Setting> setting = FindSetting(env, name);
    if (setting) job += Format("{}{}", job.empty() ? "" : " ", setting->Text());
  }
  return job;
}

/// Below what the kernel gives out by itself, and the same on all ranks of a step.
int PortOfStep(const EnvSource& env) {
  constexpr int kFirst = 20'000, kCount = 12'000;
  const std::optional<Setting> job = FindFirst(env, {"SLURM_JOB_ID"});
  const std::optional<Setting> step = FindFirst(env, {"SLURM_STEP_ID"});
  if (!job || !step) return 0;
  unsigned mixed = 0;
  for (const char c : Format("{}.{}", job->value, step->value))
    mixed = 31 * mixed + static_cast<unsigned char>(c);
  return kFirst + static_cast<int>(mixed % kCount);
}

/// The port after MASTER_PORT: torch.distributed has that one for itself.
Status FindHead(const EnvSource& env, bool in_slurm, const Config& config, Launch* launch) {
  const std::optional<Setting> address = FindSetting(env, "MASTER_ADDR");
  const std::optional<Setting> port = FindSetting(env, "MASTER_PORT");
  const std::optional<Setting> nodes =
      FindFirst(env, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
  if (address) {
    launch->head = address->value;
  } else if (in_slurm && nodes) {
    launch->head = FirstOfNodeList(nodes->value);
  }
  if (config.store_port != 0) {
    launch->head_port = config.store_port;
  } else if (address && port) {
    const std::optional<int> number = kinds::Int::Parse(port->value, 1, 65535);
    if (!number) {
      return {
          StatusCode::kInvalidArgument,
          Format("{}='{}' is not valid: expected a port from 1 to 65535", port->name, port->value)};
    }
    launch->head_port = *number == 65535 ? 65534 : *number + 1;
  } else if (in_slurm) {
    launch->head_port = PortOfStep(env);
  }
  return Status::Ok();
}

}  // namespace

std::string FirstOfNodeList(std::string_view list) {
  const std::size_t open = list.find('[');
  const std::size_t comma = list.find(',');
  if (open == std::string_view::npos || comma < open) return std::string(list.substr(0, comma));
  const std::size_t close = list.find(']', open);
  if (close == std::string_view::npos) return {};
  const std::string_view inside = list.substr(open + 1, close - open - 1);
  const std::string_view first = inside.substr(0, inside.find_first_of(",-"));
  const std::string_view behind = list.substr(close + 1);
  const bool ends = behind.empty() || behind.starts_with(',');
  return Format("{}{}{}", list.substr(0, open), first, ends ? "" : FirstOfNodeList(behind));
}

Result<Launch> FindLaunch(const EnvSource& env, Config* config) {
  const std::string own_job = config->job_id.empty() ? "" : Format("HVL_JOB_ID={}", config->job_id);
  const std::optional<Setting> own_rank = FindFirst(env, {"HVL_RANK", "HOROVOD_RANK"});
  if (own_rank) {
    const std::optional<Setting> own_size = FindFirst(env, {"HVL_SIZE", "HOROVOD_SIZE"});
    Launch launch{.family = "HVL_RANK",
                  .variables = Format("{} and {}", own_rank->Text(), own_size->Text()),
                  .job = own_job,
                  .parent = {},
                  .head = {}};
    HVL_RETURN_IF_ERROR(FindHead(env, false, *config, &launch));
    launch.knows_host = FindFirst(env, {"HVL_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE"}).has_value();
    return launch;
  }
  if (config->launcher == Launcher::kNone) return Launch();
  HVL_ASSIGN_OR_RETURN(const std::vector<Place> places, Places(env, config->launcher));
  if (places.empty()) return Launch();
  const Place& place = places.front();
  Launch launch{.family = place.family->title,
                .variables = place.variables,
                .job = own_job.empty() ? JobOf(env, place.family->job) : own_job,
                .parent = place.family->parent,
                .head = {}};
  HVL_RETURN_IF_ERROR(CompletePlace(env, place, config, &launch.knows_host));
  launch.is_mpi =
      place.family->launcher == Launcher::kOpenMpi || place.family->launcher == Launcher::kHydra;
  const bool in_slurm = place.family->launcher == Launcher::kSlurm;
  HVL_RETURN_IF_ERROR(FindHead(env, in_slurm, *config, &launch));
  return launch;
}

}  // namespace hvl::config
