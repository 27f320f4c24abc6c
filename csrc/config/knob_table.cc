#include "csrc/config/knob_table.h"

#include <algorithm>
#include <optional>

#include "csrc/base/check.h"
#include "csrc/config/knob_kinds.h"

namespace hvl::config {
namespace {

template <typename T>
bool Store(std::optional<T> value, T* field) {
  if (!value) return false;
  *field = *std::move(value);
  return true;
}

std::vector<KnobRow> BuildTable() {
  using namespace kinds;  // NOLINT(google-build-using-namespace): the rows name the kinds
  const Config defaults;
  return {
#define HVL_KNOB(field, type, kind, env, alias, flag, default_value, low, high, agree, help)       \
  KnobRow{{env, alias, flag, kind::kTypeName, kind::Print(defaults.field), kind::Range(low, high), \
           agree, help},                                                                           \
          [](std::string_view text, Config* config) {                                              \
            return Store<type>(kind::Parse(text, low, high), &config->field);                      \
          },                                                                                       \
          [](const Config& config) { return kind::Print(config.field); }},
#include "csrc/config/knobs.def"
#undef HVL_KNOB
  };
}

}  // namespace

const std::vector<KnobRow>& KnobTable() {
  static const std::vector<KnobRow> table = BuildTable();
  return table;
}

const KnobRow* FindKnob(std::string_view env_name) {
  const auto& table = KnobTable();
  const auto found = std::find_if(table.begin(), table.end(), [env_name](const KnobRow& row) {
    return row.info.env_name == env_name;
  });
  return found == table.end() ? nullptr : &*found;
}

std::vector<KnobInfo> AllKnobs() {
  std::vector<KnobInfo> knobs;
  knobs.reserve(KnobTable().size());
  for (const KnobRow& row : KnobTable()) knobs.push_back(row.info);
  return knobs;
}

std::string KnobText(const Config& config, std::string_view env_name) {
  const KnobRow* row = FindKnob(env_name);
  HVL_CHECK(row != nullptr, Format("no knob is named '{}'", env_name));
  return row->print(config);
}

}  // namespace hvl::config
