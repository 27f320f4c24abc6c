#include <unistd.h>
#include <array>
#include <charconv>
#include <cstdlib>
#include <ctime>

#include "csrc/base/check.h"
#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/base/str.h"
#include "horovodlite/status.h"

namespace hvl {
namespace {

class SteadyClockImpl final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

class StderrSinkImpl final : public LogSink {
 public:
  void Write(LogLevel, std::string_view line) override {
    std::string text(line);
    text.push_back('\n');
    // A log line that cannot be written has nowhere to be reported to.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  }
};

std::string WallTime() {
  std::timespec now{};
  std::timespec_get(&now, TIME_UTC);
  std::tm fields{};
  ::gmtime_r(&now.tv_sec, &fields);
  return Format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", fields.tm_year + 1900,
                fields.tm_mon + 1, fields.tm_mday, fields.tm_hour, fields.tm_min, fields.tm_sec,
                now.tv_nsec / 1000);
}

}  // namespace

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
#define HVL_X(enumerator, value, name, meaning) \
  case StatusCode::enumerator:                  \
    return name;
    HVL_STATUS_CODES(HVL_X)
#undef HVL_X
  }
  return "Unknown";
}

Status::Status(StatusCode code, std::string message, int culprit_rank)
    : code_(code), culprit_rank_(culprit_rank), message_(std::move(message)) {
  HVL_CHECK(code != StatusCode::kOk, "an error needs a code other than OK");
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return Format("{}: {}", StatusCodeName(code_), message_);
}

const Clock& SteadyClock() {
  static const SteadyClockImpl clock;
  return clock;
}

void CheckFailed(const char* file, int line, const char* condition, const std::string& details) {
  StderrSink()->Write(LogLevel::kFatal,
                      Format("horovodlite: internal error at {}:{}: {} does not hold{}{}; "
                             "please report this",
                             file, line, condition, details.empty() ? "" : ": ", details));
  std::abort();
}

std::string_view LogLevelName(LogLevel level) {
  constexpr std::array<std::string_view, 7> kNames = {"TRACE", "DEBUG", "INFO", "WARNING",
                                                      "ERROR", "FATAL", "OFF"};
  return kNames.at(static_cast<std::size_t>(level));
}

std::shared_ptr<LogSink> StderrSink() { return std::make_shared<StderrSinkImpl>(); }

void Logger::Write(LogLevel level, std::string_view room, std::string_view text) const {
  if (!Enabled(level)) return;
  sink_->Write(level, Format("{}{}[{}] {} {}: {}", hide_time_ ? "" : WallTime(),
                             hide_time_ ? "" : " ", identity_, LogLevelName(level), room, text));
}

}  // namespace hvl
