// What --check-build prints.
#pragma once

#include <string>
#include <vector>

#include "launcher/env_block.h"

namespace hvl::launcher {

/// What this installation can do, and what it stands on.
struct BuildFacts {
  struct Feature {
    std::string name;
    bool available = false;
  };
  struct Section {
    std::string title;
    std::vector<Feature> features;
  };
  std::vector<Section> sections;  ///< as horovodrun groups them
  std::string compiler, system, processor_features;
  std::string python;         ///< path of the python3 that PATH has; "" = none
  std::string torch_version;  ///< of that python3; "" = none
  bool has_horovodlite = false;
};

/// Asks the python3 of PATH for its packages.
BuildFacts CollectBuildFacts(const EnvBlock& environment);

/// Laid out as horovodrun does.
std::string BuildText(const BuildFacts& facts);
/// One object; a feature of a section is true or false.
std::string BuildJson(const BuildFacts& facts);

}  // namespace hvl::launcher
