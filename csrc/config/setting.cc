#include "csrc/config/setting.h"

#include <utility>

namespace hvl::config {

std::optional<Setting> FindSetting(const EnvSource& env, std::string_view name) {
  if (name.empty()) return std::nullopt;
  std::optional<std::string> value = env.Get(name);
  if (!value || value->empty()) return std::nullopt;
  return Setting{name, *std::move(value)};
}

}  // namespace hvl::config
