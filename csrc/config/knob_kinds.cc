#include "csrc/config/knob_kinds.h"

#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>

#include "csrc/base/str.h"

namespace hvl::config::kinds {
namespace {

/// The whole text as one number, or nothing: no blanks, no signs besides '-', no trailing letters.
template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [parsed_until, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || parsed_until != end) return std::nullopt;
  return value;
}

template <typename T>
std::optional<T> Within(std::optional<T> value, T low, T high) {
  if (!value || *value < low || *value > high) return std::nullopt;
  return value;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

struct ByteUnit {
  std::string_view suffix;
  std::int64_t bytes;
};
constexpr std::array<ByteUnit, 3> kByteUnits = {
    {{"GiB", std::int64_t{1} << 30}, {"MiB", std::int64_t{1} << 20}, {"KiB", 1024}}};

/// "134217728 (128 MiB)"; without the remark where no unit divides the value.
std::string DescribeBytes(std::int64_t value) {
  for (const ByteUnit& unit : kByteUnits) {
    if (value != 0 && value % unit.bytes == 0) {
      return Format("{} ({} {})", value, value / unit.bytes, unit.suffix);
    }
  }
  return Format("{}", value);
}

/// The value that the kind prints as `text`, in letters of any case.
template <typename Kind, typename Value>
std::optional<Value> ParseName(std::string_view text, std::initializer_list<Value> values) {
  const std::string lower = Lower(text);
  for (const Value value : values) {
    if (lower == Kind::Print(value)) return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int> Int::Parse(std::string_view text, int low, int high) {
  return Within(ParseNumber<int>(text), low, high);
}
std::string Int::Print(int value) { return Format("{}", value); }
std::string Int::Range(int low, int high) { return Format("an integer from {} to {}", low, high); }

std::optional<std::int64_t> Bytes::Parse(std::string_view text, std::int64_t low,
                                         std::int64_t high) {
  std::int64_t unit_bytes = 1;
  for (const ByteUnit& unit : kByteUnits) {
    if (!text.ends_with(unit.suffix)) continue;
    unit_bytes = unit.bytes;
    text.remove_suffix(unit.suffix.size());
    break;
  }
  const auto count = ParseNumber<std::int64_t>(text);
  std::int64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, unit_bytes, &bytes)) return std::nullopt;
  return Within<std::int64_t>(bytes, low, high);
}
std::string Bytes::Print(std::int64_t value) { return Format("{}", value); }
std::string Bytes::Range(std::int64_t low, std::int64_t high) {
  return Format("bytes from {} to {}, plain or followed by KiB, MiB or GiB", DescribeBytes(low),
                DescribeBytes(high));
}

std::optional<double> Float::Parse(std::string_view text, double low, double high) {
  const auto value = ParseNumber<double>(text);
  if (!value || !std::isfinite(*value)) return std::nullopt;
  return Within(value, low, high);
}
std::string Float::Print(double value) { return Format("{}", value); }
std::string Float::Range(double low, double high) {
  return Format("a number from {} to {}", low, high);
}
std::string Seconds::Range(double low, double high) {
  return Format("seconds from {} to {}", low, high);
}
std::string Micros::Range(double low, double high) {
  return Format("microseconds from {} to {}", low, high);
}

std::optional<bool> Bool::Parse(std::string_view text, int, int) {
  const std::string lower = Lower(text);
  if (lower == "1" || lower == "true" || lower == "yes" || lower == "on") return true;
  if (lower == "0" || lower == "false" || lower == "no" || lower == "off") return false;
  return std::nullopt;
}
std::string Bool::Print(bool value) { return value ? "1" : "0"; }
std::string Bool::Range(int, int) { return "1 or 0, true or false, yes or no, on or off"; }

std::optional<std::string> Text::Parse(std::string_view text, std::size_t low, std::size_t high) {
  if (text.size() < low || text.size() > high) return std::nullopt;
  return std::string(text);
}
std::string Text::Print(const std::string& value) { return value; }
std::string Text::Range(std::size_t, std::size_t high) {
  return Format("text of at most {} bytes", high);
}

std::optional<LogLevel> Level::Parse(std::string_view text, int, int) {
  return ParseName<Level>(text, {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo,
                                 LogLevel::kWarning, LogLevel::kError, LogLevel::kFatal});
}
std::string Level::Print(LogLevel value) { return Lower(LogLevelName(value)); }
std::string Level::Range(int, int) { return "trace, debug, info, warning, error or fatal"; }

std::optional<CpuOperations> CpuOps::Parse(std::string_view text, int, int) {
  return ParseName<CpuOps>(text, {CpuOperations::kAuto, CpuOperations::kLocal, CpuOperations::kTcp,
                                  CpuOperations::kMpi});
}
std::string CpuOps::Print(CpuOperations value) {
  switch (value) {
    case CpuOperations::kAuto:
      return "auto";
    case CpuOperations::kLocal:
      return "local";
    case CpuOperations::kTcp:
      return "tcp";
    case CpuOperations::kMpi:
      return "mpi";
  }
  return "unknown";
}
std::string CpuOps::Range(int, int) { return "auto, local, tcp or mpi"; }

std::optional<Launcher> Launchers::Parse(std::string_view text, int, int) {
  return ParseName<Launchers>(
      text, {Launcher::kAuto, Launcher::kOpenMpi, Launcher::kSlurm, Launcher::kHydra,
             Launcher::kTorchrun, Launcher::kEnvironment, Launcher::kNone});
}
std::string Launchers::Print(Launcher value) {
  switch (value) {
    case Launcher::kAuto:
      return "auto";
    case Launcher::kOpenMpi:
      return "openmpi";
    case Launcher::kSlurm:
      return "slurm";
    case Launcher::kHydra:
      return "hydra";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kEnvironment:
      return "environment";
    case Launcher::kNone:
      return "none";
  }
  return "unknown";
}
std::string Launchers::Range(int, int) {
  return "auto, openmpi, slurm, hydra, torchrun, environment or none";
}

std::optional<UnnamedSites> Sites::Parse(std::string_view text, int, int) {
  return ParseName<Sites>(text, {UnnamedSites::kError, UnnamedSites::kWarn, UnnamedSites::kOff});
}
std::string Sites::Print(UnnamedSites value) {
  switch (value) {
    case UnnamedSites::kError:
      return "error";
    case UnnamedSites::kWarn:
      return "warn";
    case UnnamedSites::kOff:
      return "off";
  }
  return "unknown";
}
std::string Sites::Range(int, int) { return "error, warn or off"; }

}  // namespace hvl::config::kinds
