#include "launcher/host_env.h"

#include <algorithm>
#include <array>
#include <string>

namespace hvl::launcher {
namespace {

constexpr auto kHostVariables = std::to_array<std::string_view>({
    // Who one is there. Home folders may be elsewhere.
    "HOME",
    "USER",
    "LOGNAME",
    "HOSTNAME",
    // The session, which is another one there.
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "XAUTHORITY",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
});
// Slurm's daemon sets these for each node and step, Kubernetes for each pod.
constexpr auto kHostPrefixes =
    std::to_array<std::string_view>({"SLURM_", "SLURMD_", "PMI_", "PMIX_", "KUBERNETES_"});

std::string_view NameOf(std::string_view entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

bool IsHostVariable(std::string_view name) {
  return std::find(kHostVariables.begin(), kHostVariables.end(), name) != kHostVariables.end() ||
         std::any_of(kHostPrefixes.begin(), kHostPrefixes.end(),
                     [name](std::string_view prefix) { return name.starts_with(prefix); });
}

EnvBlock WithoutHostVariables(const EnvBlock& env, const std::vector<EnvSetting>& kept) {
  std::vector<std::string> entries;
  for (const std::string& entry : env.entries()) {
    const std::string_view name = NameOf(entry);
    const bool is_kept = std::any_of(kept.begin(), kept.end(),
                                     [name](const EnvSetting& x) { return x.name == name; });
    if (is_kept || !IsHostVariable(name)) entries.push_back(entry);
  }
  return EnvBlock(std::move(entries));
}

void AddHostVariables(const EnvBlock& own, EnvBlock* env) {
  for (const std::string& entry : own.entries()) {
    const std::string_view name = NameOf(entry);
    if (!IsHostVariable(name) || name.size() == entry.size()) continue;
    env->SetIfMissing(name, std::string_view(entry).substr(name.size() + 1));
  }
}

}  // namespace hvl::launcher
