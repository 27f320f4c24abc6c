// A log that tests can read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/log.h"
#include "csrc/base/mutex.h"

namespace hvl::test {

class LogCapture {
 public:
  /// A logger of all levels that writes into this capture, and may outlive it.
  Logger logger() const { return {sink_, LogLevel::kTrace, "test", /*hide_time=*/true}; }

  std::shared_ptr<LogSink> sink() const { return sink_; }

  std::vector<std::string> lines() const { return sink_->Lines(); }
  bool Contains(std::string_view text) const {
    for (const std::string& line : lines())
      if (line.find(text) != std::string::npos) return true;
    return false;
  }

 private:
  class Sink final : public LogSink {
   public:
    void Write(LogLevel, std::string_view line) override {
      const MutexLock lock(mutex_);
      lines_.emplace_back(line);
    }
    std::vector<std::string> Lines() {
      const MutexLock lock(mutex_);
      return lines_;
    }

   private:
    Mutex mutex_;
    std::vector<std::string> lines_ HVL_GUARDED_BY(mutex_);
  };

  // Shared with the loggers, which may live longer.
  std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
};

}  // namespace hvl::test
