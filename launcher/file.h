// Reading a small file whole.
#pragma once

#include <optional>
#include <string>

namespace hvl::launcher {

/// The content, or nothing and errno: not there, not readable, a folder, or more than 16 MiB
/// (EFBIG).
std::optional<std::string> ReadFile(const std::string& path);

}  // namespace hvl::launcher
