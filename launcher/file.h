// Reading small files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hvl::launcher {

/// The content, or nothing and errno: not there, not readable, a folder, or more than 16 MiB
/// (EFBIG).
std::optional<std::string> ReadFile(const std::string& path);

/// The whole number that the content begins with; nothing when it has none ("max").
std::optional<std::int64_t> ReadNumber(const std::string& path);

}  // namespace hvl::launcher
