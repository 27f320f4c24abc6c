#include "csrc/config/config.h"

#include "csrc/base/str.h"
#include "csrc/config/env_names.h"
#include "csrc/config/identity.h"
#include "csrc/config/knob_table.h"
#include "csrc/config/setting.h"

namespace hvl::config {
namespace {

bool SameValue(const KnobRow& row, const Setting& a, const Setting& b) {
  Config first;
  Config second;
  return row.assign(a.value, &first) && row.assign(b.value, &second) &&
         row.print(first) == row.print(second);
}

/// Horovod's HOROVOD_CPU_OPERATIONS names a library; scripts that set it must go on working.
bool IsHorovodLibrary(const Setting& setting) {
  return setting.name == "HOROVOD_CPU_OPERATIONS" &&
         (setting.value == "gloo" || setting.value == "ccl");
}

Status Apply(const KnobRow& row, const EnvSource& env, Config* config,
             std::vector<std::string>* warnings) {
  const std::optional<Setting> ours = FindSetting(env, row.info.env_name);
  const std::optional<Setting> alias = FindSetting(env, row.info.alias);
  if (!ours && !alias) return Status::Ok();
  if (ours && alias && !SameValue(row, *ours, *alias)) {
    warnings->push_back(Format("{}='{}' and {}='{}' name the same knob; {} is used", ours->name,
                               ours->value, alias->name, alias->value, ours->name));
  }
  const Setting& setting = ours ? *ours : *alias;
  if (IsHorovodLibrary(setting)) {
    warnings->push_back(
        Format("{}='{}' has no effect: CPU tensors are reduced by horovodlite's "
               "own data planes (see {})",
               setting.name, setting.value, row.info.env_name));
    return Status::Ok();
  }
  if (row.assign(setting.value, config)) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          Format("{}='{}' is not valid: expected {}; the default is {}", setting.name,
                 setting.value, row.info.range_text,
                 row.info.default_text.empty() ? "not set" : row.info.default_text)};
}

}  // namespace

Result<Config> Config::Parse(const EnvSource& env, std::vector<std::string>* warnings) {
  std::vector<std::string> found;
  Config config;
  for (const KnobRow& row : KnobTable()) {
    HVL_RETURN_IF_ERROR(Apply(row, env, &config, &found));
  }
  HVL_RETURN_IF_ERROR(CompleteIdentity(env, &config));
  for (std::string& warning : NameWarnings(env.Names())) found.push_back(std::move(warning));
  for (std::string& warning : ValueWarnings(env)) found.push_back(std::move(warning));
  if (warnings != nullptr) *warnings = std::move(found);
  return config;
}

}  // namespace hvl::config
