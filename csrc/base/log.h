// Logging: one line per event, written at once to an injected sink. Nothing else in the runtime
// prints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "csrc/base/str.h"

namespace hvl {

enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarning, kError, kFatal, kOff };
std::string_view LogLevelName(LogLevel level);

class LogSink {
 public:
  virtual ~LogSink() = default;
  /// Any thread. `line` is complete, without a newline. Must not log itself.
  virtual void Write(LogLevel level, std::string_view line) = 0;
};

/// Writes each line to standard error with one write call, so that lines of several ranks do not
/// mix.
std::shared_ptr<LogSink> StderrSink();

/// Adds the common fields and filters by level. Copyable, thread-safe, cheap when filtered.
/// Line: `<time> [<rank>/<size>] <LEVEL> <room>: text`; the time is left out when `hide_time`.
class Logger {
 public:
  Logger() = default;  ///< discards everything
  Logger(std::shared_ptr<LogSink> sink, LogLevel level, std::string identity, bool hide_time)
      : sink_(std::move(sink)),
        level_(level),
        identity_(std::move(identity)),
        hide_time_(hide_time) {}

  bool Enabled(LogLevel level) const { return sink_ != nullptr && level >= level_; }
  void Write(LogLevel level, std::string_view room, std::string_view text) const;

 private:
  std::shared_ptr<LogSink> sink_;  // shared by all copies of this logger
  LogLevel level_ = LogLevel::kOff;
  std::string identity_;
  bool hide_time_ = false;
};

}  // namespace hvl

// HVL_LOG(logger, kWarning, "net", "peer {} closed", rank); arguments are evaluated only when
// enabled.
#define HVL_LOG(logger, level, room, ...)                                       \
  do {                                                                          \
    if ((logger).Enabled(::hvl::LogLevel::level))                               \
      (logger).Write(::hvl::LogLevel::level, room, ::hvl::Format(__VA_ARGS__)); \
  } while (false)
