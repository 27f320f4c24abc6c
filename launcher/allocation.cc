#include "launcher/allocation.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <sstream>

#include "csrc/base/str.h"
#include "launcher/errors.h"
#include "launcher/file.h"

namespace hvl::launcher {
namespace {

constexpr std::size_t kMaxHosts = 65536;

std::string Value(const EnvBlock& env, std::string_view name) {
  return std::string(env.Get(name).value_or(""));
}

std::optional<int> Number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) return std::nullopt;
  return number;
}

/// The variable that says how many ranks each host takes. Without a number of tasks Slurm counts
/// one task per node, and who asked for whole nodes wants them used.
std::string_view SlotsVariable(const EnvBlock& env) {
  const bool has_tasks = env.Get("SLURM_NTASKS") || env.Get("SLURM_NTASKS_PER_NODE");
  const bool has_cpus = env.Get("SLURM_JOB_CPUS_PER_NODE").has_value();
  return has_tasks || !has_cpus ? "SLURM_TASKS_PER_NODE" : "SLURM_JOB_CPUS_PER_NODE";
}

Result<std::optional<Allocation>> FindSlurm(const EnvBlock& env) {
  const std::string nodes = Value(env, "SLURM_JOB_NODELIST");
  Allocation found{
      .system = Format("Slurm job {}", Value(env, "SLURM_JOB_ID")), .rsh = "srun", .hosts = {}};
  Result<std::vector<HostSlots>> hosts = ParseHosts(nodes);
  if (!hosts.ok()) {
    return Invalid(Format("SLURM_JOB_NODELIST: {}; -H or --hostfile says where ranks run",
                          hosts.status().message()));
  }
  found.hosts = std::move(*hosts);
  if (found.hosts.size() == 1) return std::optional(found);
  const std::string_view name = SlotsVariable(env);
  const Result<std::vector<int>> counts = ParseCounts(Value(env, name));
  if (!counts.ok() || counts->size() != found.hosts.size()) {
    return Invalid(
        Format("{}='{}' does not say how many ranks each of the {} hosts '{}' takes; "
               "-H or --hostfile says where ranks run",
               name, Value(env, name), found.hosts.size(), nodes));
  }
  for (std::size_t i = 0; i < counts->size(); ++i) found.hosts[i].slots = (*counts)[i];
  return std::optional(found);
}

/// A file with a line for each slot.
Result<std::optional<Allocation>> FindListed(const EnvBlock& env, std::string_view variable,
                                             Allocation found) {
  const std::string path = Value(env, variable);
  const std::optional<std::string> content = ReadFile(path);
  if (!content) {
    return Invalid(Format("cannot read {}={}: {}; -H or --hostfile says where ranks run", variable,
                          path, ErrnoText(errno)));
  }
  std::istringstream words(*content);
  for (std::string host; words >> host;) {
    HVL_ASSIGN_OR_RETURN(std::vector<HostSlots> named, ParseHosts(host));
    const auto same = std::find_if(found.hosts.begin(), found.hosts.end(),
                                   [&](const HostSlots& x) { return x.host == named[0].host; });
    if (same == found.hosts.end()) {
      found.hosts.push_back({.host = named[0].host, .slots = 1});
    } else {
      ++*same->slots;
    }
  }
  if (found.hosts.empty()) return std::optional<Allocation>();
  if (found.hosts.size() == 1) found.hosts[0].slots.reset();
  return std::optional(found);
}

}  // namespace

Result<std::vector<int>> ParseCounts(std::string_view text) {
  std::vector<int> counts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::string_view part = text.substr(at, end - at);
    at = end + 1;
    int times = 1;
    if (const std::size_t open = part.find("(x"); open != std::string_view::npos) {
      const std::string_view inside = part.substr(open + 2);
      const std::optional<int> number =
          inside.ends_with(')') ? Number(inside.substr(0, inside.size() - 1)) : std::nullopt;
      if (!number) return Invalid(Format("'{}' is no list of numbers", text));
      times = *number;
      part = part.substr(0, open);
    }
    const std::optional<int> count = Number(part);
    if (!count || counts.size() + static_cast<std::size_t>(times) > kMaxHosts) {
      return Invalid(Format("'{}' is no list of numbers", text));
    }
    counts.insert(counts.end(), static_cast<std::size_t>(times), *count);
  }
  return counts;
}

Result<std::optional<Allocation>> FindAllocation(const EnvBlock& env) {
  const bool several_copies = Number(Value(env, "SLURM_STEP_NUM_TASKS")).value_or(1) > 1;
  if (env.Get("SLURM_JOB_ID") && env.Get("SLURM_JOB_NODELIST") && !several_copies) {
    return FindSlurm(env);
  }
  if (env.Get("PBS_NODEFILE")) {
    return FindListed(
        env, "PBS_NODEFILE",
        {.system = Format("PBS job {}", Value(env, "PBS_JOBID")), .rsh = "ssh", .hosts = {}});
  }
  if (env.Get("LSB_DJOB_HOSTFILE")) {
    return FindListed(
        env, "LSB_DJOB_HOSTFILE",
        {.system = Format("LSF job {}", Value(env, "LSB_JOBID")), .rsh = "blaunch", .hosts = {}});
  }
  return std::optional<Allocation>();
}

}  // namespace hvl::launcher
