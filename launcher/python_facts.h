// What a Python interpreter has, without importing it, which would take seconds.
#pragma once

#include <string>
#include <vector>

#include "launcher/env_block.h"

namespace hvl::launcher {

struct PythonFacts {
  std::string path;     ///< "" = there is no such program
  std::string version;  ///< "" = it is there and does not answer
  std::string torch;    ///< versions of packages; "" = not installed
  std::string numpy;
  std::string horovodlite;  ///< "?" = there, not installed as a package (a source tree)
};

/// Runs the interpreter with those of `settings` that Python itself looks at.
PythonFacts AskPython(const std::string& path, const std::vector<EnvSetting>& settings = {});

/// Whether a command of that name is a Python interpreter: python, python3, /opt/x/python3.11.
bool IsPython(std::string_view command);

}  // namespace hvl::launcher
