// The only file of the project that reads the process environment.
#include <unistd.h>

#include <cstdlib>

#include "csrc/config/config.h"

namespace hvl::config {

std::optional<std::string> ProcessEnv::Get(std::string_view name) const {
  const char* value = std::getenv(std::string(name).c_str());  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::vector<std::string> ProcessEnv::Names() const {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

std::optional<std::string> MapEnv::Get(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> MapEnv::Names() const {
  std::vector<std::string> names;
  names.reserve(values_.size());
  for (const auto& entry : values_) names.push_back(entry.first);
  return names;
}

}  // namespace hvl::config
