#include "csrc/session/mpi_plane.h"

#include <utility>

#include "csrc/base/str.h"
#include "csrc/plugin/mpi_library.h"
#include "csrc/plugin/open.h"
#include "csrc/session/settings.h"
#include "horovodlite/mpi.h"

namespace hvl::session {
namespace {

std::string PluginFolder(const config::Config& config) {
  return config.plugin_folder.empty() ? plugin::DefaultFolder() : config.plugin_folder;
}

}  // namespace

Result<plugin::Mpi*> OpenMpiPlugin(const config::Config& config, const Logger& logger) {
  return plugin::OpenMpi(PluginFolder(config), config.mpi_library, logger);
}

Result<std::unique_ptr<collective::Backend>> MakeMpiPlane(const config::Config& config,
                                                          net::Mesh& mesh,
                                                          std::vector<int> group_ends,
                                                          const Logger& logger) {
  HVL_ASSIGN_OR_RETURN(plugin::Mpi* const mpi, OpenMpiPlugin(config, logger));
  plugin::MpiOptions options = MpiOptions(config);
  options.group_ends = std::move(group_ends);
  options.session = Format("{} {}", config.job_id, mesh.generation());
  return mpi->CreateBackend(std::move(options), logger);
}

}  // namespace hvl::session

namespace hvl {
namespace {

/// What the environment says; the defaults when it says something wrong, which Create reports.
config::Config ConfigOrDefaults() {
  Result<config::Config> config = config::Config::Parse(config::ProcessEnv(), nullptr);
  return config.ok() ? std::move(config).value() : config::Config();
}

}  // namespace

std::vector<std::string> MpiFamilies() {
  return plugin::MpiFamilies(session::PluginFolder(ConfigOrDefaults()));
}

// A plug-in that is open already is found, and not opened again.
bool MpiThreadsSupported() {
  const config::Config config = ConfigOrDefaults();
  const Result<plugin::Mpi*> mpi =
      plugin::OpenMpi(session::PluginFolder(config), config.mpi_library, Logger());
  return mpi.ok() && mpi.value()->threads_supported();
}

}  // namespace hvl
