#include "csrc/config/env_names.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "csrc/base/str.h"
#include "csrc/config/knob_kinds.h"
#include "csrc/config/knob_table.h"

namespace hvl::config {
namespace {

constexpr std::string_view kOurs = "HVL_";
constexpr std::string_view kHorovods = "HOROVOD_";
constexpr std::string_view kHorovodsOwn = "_HOROVOD_";  // set by its launcher, not by people
constexpr std::array<std::string_view, 4> kReservedPrefixes = {"HVL_TEST_", "HVL_BENCH_",
                                                               "HVL_BUILD_", "HVL_RUN_"};

constexpr auto kHorovodNames = std::to_array<HorovodName>({
#define HVL_HOROVOD_NAME(name, why) {name, why},
#include "csrc/config/horovod_names.def"
#undef HVL_HOROVOD_NAME
});

/// Horovod's build options; one of them is a letter away from a knob.
constexpr std::string_view kHorovodGpuBuildPrefix = "HOROVOD_GPU_";

bool IsReserved(std::string_view name) {
  return std::any_of(kReservedPrefixes.begin(), kReservedPrefixes.end(),
                     [name](std::string_view prefix) { return name.starts_with(prefix); });
}

bool Matches(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  pattern.remove_suffix(1);
  return name.starts_with(pattern);
}

/// The closest of the knobs' names (`member` picks which of the two), at most `limit` away.
std::string_view Nearest(std::string_view name, std::string_view KnobInfo::* member,
                         std::size_t limit) {
  std::string_view nearest;
  for (const KnobRow& row : KnobTable()) {
    const std::string_view candidate = row.info.*member;
    if (candidate.empty()) continue;
    // A name that breaks off early is one mistake, however much is missing.
    const bool breaks_off = candidate.starts_with(name) && candidate != name;
    const std::size_t distance = breaks_off ? 1 : EditDistance(name, candidate);
    if (distance > limit) continue;
    nearest = candidate;
    limit = distance == 0 ? 0 : distance - 1;  // only a closer one replaces it
  }
  return nearest;
}

std::optional<std::string> WarningForOurs(std::string_view name) {
  if (FindKnob(name) != nullptr || IsReserved(name)) return std::nullopt;
  // Half of the letters after the prefix may be wrong; beyond that the guess would mislead.
  const std::size_t limit = std::max<std::size_t>(2, (name.size() - kOurs.size()) / 2);
  const std::string_view nearest = Nearest(name, &KnobInfo::env_name, limit);
  if (nearest.empty()) {
    return Format("{} is set, but no knob has this name; it has no effect", name);
  }
  return Format("{} is set, but no knob has this name; did you mean {}?", name, nearest);
}

std::optional<std::string> WarningForHorovods(std::string_view name) {
  if (name.starts_with(kHorovodGpuBuildPrefix)) return std::nullopt;
  for (const HorovodName& known : kHorovodNames) {
    if (Matches(known.name, name)) return Format("{} has no effect: {}", name, known.why);
  }
  const std::string_view nearest = Nearest(name, &KnobInfo::alias, 2);
  if (nearest.empty() || nearest == name) return std::nullopt;
  return Format("{} is set, but has no effect; did you mean {}?", name, nearest);
}

}  // namespace

std::size_t EditDistance(std::string_view a, std::string_view b) {
  // Row i holds the distances of a[0, i) to every prefix of b; a swap looks two rows back.
  std::vector<std::size_t> two_back(b.size() + 1);
  std::vector<std::size_t> previous(b.size() + 1);
  std::vector<std::size_t> current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], two_back[j - 2] + 1);
      }
    }
    std::swap(two_back, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::span<const HorovodName> HorovodNamesWithoutEffect() { return kHorovodNames; }

std::vector<std::string> NameWarnings(const std::vector<std::string>& names) {
  std::vector<std::string> warnings;
  for (const std::string& name : names) {
    std::optional<std::string> warning;
    if (name.starts_with(kOurs)) warning = WarningForOurs(name);
    if (name.starts_with(kHorovods) || name.starts_with(kHorovodsOwn))
      warning = WarningForHorovods(name);
    if (warning) warnings.push_back(*std::move(warning));
  }
  return warnings;
}

std::vector<std::string> ValueWarnings(const EnvSource& env) {
  std::vector<std::string> warnings;
  const std::optional<std::string> dynamic = env.Get("HOROVOD_DYNAMIC_PROCESS_SETS");
  if (dynamic && !dynamic->empty() && !kinds::Bool::Parse(*dynamic, 0, 1).value_or(false)) {
    warnings.push_back(Format(
        "HOROVOD_DYNAMIC_PROCESS_SETS='{}' has no effect: process sets come and go at any time",
        *dynamic));
  }
  const std::optional<std::string> host = env.Get("HOROVOD_HOSTNAME");
  const bool from_hvlrun = env.Get("HVL_STORE").has_value();  // it sets both
  if (host && !host->empty() && !from_hvlrun) {
    warnings.push_back(
        Format("HOROVOD_HOSTNAME='{}' has no effect: which ranks share a host "
               "follows from HVL_LOCAL_RANK and HVL_LOCAL_SIZE",
               *host));
  }
  return warnings;
}

}  // namespace hvl::config
