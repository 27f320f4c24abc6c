// The kinds of knobs: how text becomes a value within its limits, and back. Used by knob_table.cc
// only, which names them in the rows of knobs.def.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "csrc/base/log.h"
#include "csrc/config/config.h"

// Each kind offers kTypeName, Parse (nullopt: malformed or outside the limits), Print (parses back
// to the same value) and Range (what is allowed, in words).
namespace hvl::config::kinds {

struct Int {
  static constexpr std::string_view kTypeName = "integer";
  static std::optional<int> Parse(std::string_view text, int low, int high);
  static std::string Print(int value);
  static std::string Range(int low, int high);
};

struct Bytes {
  static constexpr std::string_view kTypeName = "bytes";
  static std::optional<std::int64_t> Parse(std::string_view text, std::int64_t low,
                                           std::int64_t high);
  static std::string Print(std::int64_t value);
  static std::string Range(std::int64_t low, std::int64_t high);
};

/// A finite decimal number, in the unit that the knob's sentence names.
struct Float {
  static constexpr std::string_view kTypeName = "number";
  static std::optional<double> Parse(std::string_view text, double low, double high);
  static std::string Print(double value);
  static std::string Range(double low, double high);
};

struct Seconds : Float {
  static constexpr std::string_view kTypeName = "seconds";
  static std::string Range(double low, double high);
};

struct Micros : Float {
  static constexpr std::string_view kTypeName = "microseconds";
  static std::string Range(double low, double high);
};

struct Bool {
  static constexpr std::string_view kTypeName = "bool";
  static std::optional<bool> Parse(std::string_view text, int low, int high);
  static std::string Print(bool value);
  static std::string Range(int low, int high);
};

/// The limits are those of the length.
struct Text {
  static constexpr std::string_view kTypeName = "text";
  static std::optional<std::string> Parse(std::string_view text, std::size_t low, std::size_t high);
  static std::string Print(const std::string& value);
  static std::string Range(std::size_t low, std::size_t high);
};

struct Level {
  static constexpr std::string_view kTypeName = "log level";
  static std::optional<LogLevel> Parse(std::string_view text, int low, int high);
  static std::string Print(LogLevel value);
  static std::string Range(int low, int high);
};

struct CpuOps {
  static constexpr std::string_view kTypeName = "data plane";
  static std::optional<CpuOperations> Parse(std::string_view text, int low, int high);
  static std::string Print(CpuOperations value);
  static std::string Range(int low, int high);
};

struct Launchers {
  static constexpr std::string_view kTypeName = "launcher";
  static std::optional<Launcher> Parse(std::string_view text, int low, int high);
  static std::string Print(Launcher value);
  static std::string Range(int low, int high);
};

struct Sites {
  static constexpr std::string_view kTypeName = "check";
  static std::optional<UnnamedSites> Parse(std::string_view text, int low, int high);
  static std::string Print(UnnamedSites value);
  static std::string Range(int low, int high);
};

}  // namespace hvl::config::kinds
