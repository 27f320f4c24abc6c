#include "launcher/env_block.h"

#include <fnmatch.h>

#include <algorithm>

namespace hvl::launcher {
namespace {

bool HasName(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

}  // namespace

bool IsPattern(std::string_view name) {
  return name.find_first_of("*?[") != std::string_view::npos;
}

EnvBlock::EnvBlock(char* const* entries) {
  for (; entries != nullptr && *entries != nullptr; ++entries) entries_.emplace_back(*entries);
}

std::optional<std::string_view> EnvBlock::Get(std::string_view name) const {
  for (const std::string& entry : entries_) {
    if (HasName(entry, name)) return std::string_view(entry).substr(name.size() + 1);
  }
  return std::nullopt;
}

bool EnvBlock::HasMatch(const std::string& pattern) const {
  return std::any_of(entries_.begin(), entries_.end(), [&pattern](const std::string& entry) {
    const std::string name = entry.substr(0, entry.find('='));
    return name == pattern || ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

void EnvBlock::Set(std::string_view name, std::string_view value) {
  const auto same_name = [name](const std::string& entry) { return HasName(entry, name); };
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), same_name), entries_.end());
  std::string entry(name);
  entry += '=';
  entry += value;
  entries_.push_back(std::move(entry));
}

void EnvBlock::SetIfMissing(std::string_view name, std::string_view value) {
  if (!Get(name)) Set(name, value);
}

std::vector<char*> EnvBlock::Pointers() {
  std::vector<char*> pointers;
  pointers.reserve(entries_.size() + 1);
  for (std::string& entry : entries_) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace hvl::launcher
