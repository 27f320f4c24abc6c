// Finds the program that a command names, as execvp() would, but before anything is started.
#pragma once

#include <string>
#include <string_view>

#include "launcher/exit_status.h"

namespace hvl::launcher {

/// `search_path` is the value of PATH in the environment that the program will get.
/// Exit codes of a refusal: 127 when there is none, 126 when it cannot be executed.
Refusal FindProgram(const std::string& name, std::string_view search_path, std::string* found);

}  // namespace hvl::launcher
