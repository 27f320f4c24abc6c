#include "launcher/drop_in.h"

#include "csrc/base/str.h"

namespace hvl::launcher {

Result<std::string> DropInSite(const std::filesystem::path& program) {
  const std::string site = (program.parent_path().parent_path() / "_drop_in_site").string();
  std::error_code failed;
  if (!std::filesystem::is_directory(site, failed)) {
    return Status(StatusCode::kNotSupported,
                  Format("--drop-in: the folder {} does not exist; it comes with the Python "
                         "package, so use the hvlrun that `pip install` has put into PATH",
                         site));
  }
  if (site.find(':') != std::string::npos) {
    return Status(StatusCode::kNotSupported,
                  Format("--drop-in: {} has a ':' in it, so it cannot stand in PYTHONPATH; "
                         "install horovodlite elsewhere",
                         site));
  }
  return site;
}

std::vector<EnvSetting> DropInSettings(const std::string& site, const EnvBlock& env) {
  const std::string_view path = env.Get("PYTHONPATH").value_or("");
  std::vector<EnvSetting> settings;
  // An empty entry would mean the working directory.
  settings.push_back({"PYTHONPATH", path.empty() ? site : Format("{}:{}", site, path)});
  if (!env.Get("HVL_UNNAMED_SITES")) settings.push_back({"HVL_UNNAMED_SITES", "warn"});
  return settings;
}

}  // namespace hvl::launcher
