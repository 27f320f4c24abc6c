// --config-file: a YAML file with the keys of horovodrun's. Pure: text in, settings out.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "horovodlite/status.h"
#include "launcher/env_block.h"
#include "launcher/options.h"

namespace hvl::launcher {

struct FileSettings {
  /// What a key of a knob stands for: the knob's variable, then that of its Horovod name.
  std::vector<std::vector<EnvSetting>> knobs;
  std::vector<std::string> warnings;  ///< keys without effect, one sentence each
  /// `controller: mpi`, and what it uses, where the command line does not have it.
  MpiChoice mpi = {};
};

/// `given` are options of the command line by long name: keys that stand for one of them are
/// checked and otherwise left aside. Every error begins with "<name>:<line>:"; an unknown key is
/// one, and so are a key that is there twice and a value that its option would not take. A key
/// without a value counts as not there.
Result<FileSettings> ParseConfigFile(const std::string& content, std::string_view name,
                                     std::span<const std::string> given);

}  // namespace hvl::launcher
