// A variable that is set to something; an empty value counts as not set.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "csrc/base/str.h"
#include "csrc/config/config.h"

namespace hvl::config {

struct Setting {
  std::string_view name;
  std::string value;

  std::string Text() const { return Format("{}={}", name, value); }
};

/// Nothing where `name` is empty, too: an alias that a knob does not have.
std::optional<Setting> FindSetting(const EnvSource& env, std::string_view name);

}  // namespace hvl::config
