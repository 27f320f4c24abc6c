// An environment as a list of "NAME=value" entries that is handed on byte for byte, whatever the
// names and values look like.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvl::launcher {

struct EnvSetting {
  std::string name;
  std::string value;

  bool operator==(const EnvSetting&) const = default;
};

/// True when `name` is a pattern of the shell ("NCCL_*") and not a name.
bool IsPattern(std::string_view name);

class EnvBlock {
 public:
  EnvBlock() = default;
  /// Copies a null-terminated array as main() receives it; null = empty.
  explicit EnvBlock(char* const* entries);
  explicit EnvBlock(std::vector<std::string> entries) : entries_(std::move(entries)) {}

  /// The value of the first entry of that name, as getenv() would find it.
  std::optional<std::string_view> Get(std::string_view name) const;
  /// True when some entry's name matches; a name without wildcards matches itself.
  bool HasMatch(const std::string& pattern) const;
  /// Replaces every entry of that name by one.
  void Set(std::string_view name, std::string_view value);
  void SetIfMissing(std::string_view name, std::string_view value);

  const std::vector<std::string>& entries() const { return entries_; }
  /// For execve(); valid until the block changes.
  std::vector<char*> Pointers();

 private:
  std::vector<std::string> entries_;
};

}  // namespace hvl::launcher
