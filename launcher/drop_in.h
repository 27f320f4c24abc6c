// --drop-in: what makes `import horovod` in a rank find horovodlite.
#pragma once

#include <filesystem>

#include "horovodlite/status.h"
#include "launcher/env_block.h"

namespace hvl::launcher {

/// The folder with the package `horovod`, as installed beside the program (in <package>/bin):
/// <package>/_drop_in_site. NotSupported names the folder that is missing.
Result<std::string> DropInSite(const std::filesystem::path& program);

/// What a rank needs besides `env`, the environment it would have otherwise: the folder comes
/// first on PYTHONPATH, so that it also wins over an installed Horovod; and unnamed operations of
/// different lines of a script may meet, as they do in Horovod, unless the user has said otherwise.
std::vector<EnvSetting> DropInSettings(const std::string& site, const EnvBlock& env);

}  // namespace hvl::launcher
