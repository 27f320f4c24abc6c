// Files of the trace tests: a path of their own, and their contents read back by a JSON parser.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace hvl::trace {

/// A directory that is removed with everything in it.
class ScratchDir {
 public:
  ScratchDir() {
    std::string pattern = std::filesystem::temp_directory_path() / "hvl_trace_XXXXXX";
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~ScratchDir() { std::filesystem::remove_all(path_); }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  std::string operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Fails the test when the file is not one complete JSON array.
inline nlohmann::json ParseFile(const std::string& path) {
  const std::string text = ReadFile(path);
  nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  INFO("tail: " << text.substr(text.size() < 200 ? 0 : text.size() - 200));
  REQUIRE(parsed.is_array());
  return parsed;
}

}  // namespace hvl::trace
