#include "csrc/session/settings.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <thread>
#include <vector>

#include "csrc/base/str.h"

namespace hvl::session {
namespace {

bool RanksOutnumberCores(const config::Config& config) {
  // Else those that this process may use; 0 = not known.
  const unsigned cores = config.local_processors > 0
                             ? static_cast<unsigned>(config.local_processors)
                             : std::thread::hardware_concurrency();
  return cores != 0 && static_cast<unsigned>(config.local_size) > cores;
}

/// "0,1,5"; nothing when that is no list of numbers from `lowest`.
std::optional<std::vector<int>> ParseNumbers(std::string_view list, int lowest) {
  std::vector<int> numbers;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const char* const end = list.data() + comma;
    int number = lowest - 1;
    const auto [parsed_until, error] = std::from_chars(list.data() + at, end, number);
    if (error != std::errc() || parsed_until != end || number < lowest) return std::nullopt;
    numbers.push_back(number);
    at = comma + 1;
  }
  return numbers;
}

plan::UnnamedSites UnnamedSitesOf(config::UnnamedSites knob) {
  switch (knob) {
    case config::UnnamedSites::kError:
      return plan::UnnamedSites::kError;
    case config::UnnamedSites::kWarn:
      return plan::UnnamedSites::kWarn;
    case config::UnnamedSites::kOff:
      break;
  }
  return plan::UnnamedSites::kIgnore;
}

}  // namespace

Duration SecondsToDuration(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

void PlaceByHosts(std::span<const int> hosts, config::Config* config) {
  if (hosts.back() == 0 || config->cross_size > 1) return;
  std::vector<int> rank_counts(static_cast<std::size_t>(hosts.back()) + 1);
  for (const int host : hosts) ++rank_counts[static_cast<std::size_t>(host)];
  const int own = hosts[static_cast<std::size_t>(config->rank)];
  const auto first = std::ranges::find(hosts, own);
  config->local_rank = config->rank - static_cast<int>(first - hosts.begin());
  config->local_size = rank_counts[static_cast<std::size_t>(own)];
  config->cross_rank = config->cross_size = 0;
  for (std::size_t host = 0; host < rank_counts.size(); ++host) {
    if (rank_counts[host] <= config->local_rank) continue;
    if (host < static_cast<std::size_t>(own)) ++config->cross_rank;
    ++config->cross_size;
  }
}

// A plan can freeze only where the data plane has gates, which is the same on all ranks.
plan::Options PlannerOptions(const config::Config& config, bool has_gates) {
  return {.fusion_threshold_bytes = static_cast<std::size_t>(config.fusion_threshold_bytes),
          .intern_capacity = static_cast<std::size_t>(config.cache_capacity),
          .stall_check = !config.stall_check_disable,
          .stall_warning = SecondsToDuration(config.stall_warning_seconds),
          .stall_shutdown = SecondsToDuration(config.stall_shutdown_seconds),
          .unnamed_sites = UnnamedSitesOf(config.unnamed_sites),
          .freeze_after = has_gates ? config.freeze_after : 0,
          .bucket_bytes = static_cast<std::size_t>(config.bucket_bytes),
          .edge_bucket_bytes = static_cast<std::size_t>(config.edge_bucket_bytes),
          .tune = has_gates && config.autotune,
          .tuner = {.warm_up_samples = config.autotune_warmup_samples,
                    .steps_per_sample = config.autotune_steps_per_sample,
                    .most_samples = config.autotune_max_samples}};
}

// When ranks outnumber the cores, the peer that a thread waits for may need the very core it spins
// on: it lets go of it at once. (Measured: 4 ranks on 2 cores, 35 against 110 us for 4 bytes
// without spinning.)
engine::Options EngineOptions(const config::Config& config) {
  engine::Options options{.max_outstanding = static_cast<std::size_t>(config.max_outstanding),
                          .spin = SecondsToDuration(config.spin_us * 1e-6)};
  if (RanksOutnumberCores(config)) options.keep_core = Duration::zero();
  return options;
}

Result<std::optional<int>> ThreadProcessor(const config::Config& config) {
  const std::string_view list = config.thread_affinity;
  if (list.empty()) return std::optional<int>();
  const std::optional<std::vector<int>> processors = ParseNumbers(list, 0);
  if (!processors || static_cast<int>(processors->size()) < config.local_size) {
    return Status(StatusCode::kInvalidArgument,
                  Format("HVL_THREAD_AFFINITY='{}' has no effect: expected {} processors, one for "
                         "each rank of this host, like 0,1",
                         list, config.local_size));
  }
  return std::optional((*processors)[static_cast<std::size_t>(config.local_rank)]);
}

collective::LocalOptions LocalOptions(const config::Config& config) {
  return {.staging_bytes = static_cast<std::size_t>(config.staging_bytes),
          .spin = SecondsToDuration(config.spin_us * 1e-6),
          .heap_bytes = {}};
}

collective::TcpOptions TcpOptions(const config::Config& config) {
  return {.reproducible = config.reproducible,
          .spin = RanksOutnumberCores(config) ? Duration::zero()
                                              : SecondsToDuration(config.spin_us * 1e-6)};
}

plugin::MpiOptions MpiOptions(const config::Config& config) {
  return {.rank = config.rank,
          .size = config.size,
          .session = {},
          .start_timeout = SecondsToDuration(config.start_timeout_seconds),
          .spin = SecondsToDuration(config.spin_us * 1e-6),
          .yields = RanksOutnumberCores(config),
          .reproducible = config.reproducible,
          .one_thread = config.mpi_threads_disable};
}

Result<std::vector<int>> SumGroupEnds(const config::Config& config) {
  std::vector<int> ends;
  if (config.sum_groups.empty()) return ends;
  const std::optional<std::vector<int>> groups = ParseNumbers(config.sum_groups, 1);
  std::int64_t ranks = 0;
  for (const int group : groups.value_or(std::vector<int>())) {
    ranks += group;
    ends.push_back(static_cast<int>(std::min<std::int64_t>(ranks, config.size)));
  }
  if (ranks == config.size) return ends;
  const std::string found = groups ? Format("these are {} ranks", ranks) : "this is no such list";
  return Status(StatusCode::kInvalidArgument,
                Format("HVL_SUM_GROUPS='{}' does not divide the world: {}; expected numbers of "
                       "ranks that add up to {}, like {},{}",
                       config.sum_groups, found, config.size, (config.size + 1) / 2,
                       config.size - (config.size + 1) / 2));
}

bool WritesTimeline(const config::Config& config) {
  return config.rank == 0 && !config.timeline.empty() && config.timeline != "DYNAMIC";
}

bool KeepsFreedMemory(const config::Config& config, const config::EnvSource& env) {
  const auto tunables = env.Get("GLIBC_TUNABLES");
  return config.keep_memory && !env.Get("MALLOC_TRIM_THRESHOLD_") &&
         !env.Get("MALLOC_MMAP_THRESHOLD_") &&
         (!tunables || tunables->find("glibc.malloc.") == std::string::npos);
}

}  // namespace hvl::session
