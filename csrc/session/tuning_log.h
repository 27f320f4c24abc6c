// The autotuner's log: one line of comma-separated values per sample (HVL_AUTOTUNE_LOG).
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "csrc/base/clock.h"
#include "csrc/plan/tuner.h"
#include "horovodlite/status.h"

namespace hvl::session {

/// Not thread-safe. Lines are in the file at once, so that it can be watched.
class TuningLog {
 public:
  /// Creates or truncates the file. InvalidArgument with the reason when it cannot be written.
  static Result<std::unique_ptr<TuningLog>> Open(const std::string& path, TimePoint start);
  /// `now` as the time of `start`.
  void Write(const plan::TunerSample& sample, TimePoint now);
  /// A line that is no sample; it starts with "# ". `text` has one line.
  void Remark(const std::string& text);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  TuningLog(std::FILE* file, TimePoint start) : file_(file), start_(start) {}

  const std::unique_ptr<std::FILE, Close> file_;
  const TimePoint start_;
};

}  // namespace hvl::session
