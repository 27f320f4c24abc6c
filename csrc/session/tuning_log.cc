#include "csrc/session/tuning_log.h"

#include <cerrno>
#include <chrono>

#include "csrc/base/errno_text.h"
#include "csrc/base/str.h"

namespace hvl::session {
namespace {

double Seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

Result<std::unique_ptr<TuningLog>> TuningLog::Open(const std::string& path, TimePoint start) {
  std::FILE* const file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  Format("HVL_AUTOTUNE_LOG: cannot write '{}': {}", path, ErrnoText(errno)));
  }
  std::fputs("seconds,bucket_bytes,edge_bucket_bytes,median_step_seconds,bytes_per_second\n", file);
  std::fflush(file);
  return std::unique_ptr<TuningLog>(new TuningLog(file, start));
}

void TuningLog::Remark(const std::string& text) {
  std::fputs(Format("# {}\n", text).c_str(), file_.get());
  std::fflush(file_.get());
}

void TuningLog::Write(const plan::TunerSample& sample, TimePoint now) {
  const std::string line =
      Format("{:.3f},{},{},{:.6f},{:.0f}\n", Seconds(now - start_), sample.sizes[0],
             sample.sizes[1], Seconds(sample.median_step), sample.bytes_per_second);
  std::fputs(line.c_str(), file_.get());
  std::fflush(file_.get());
}

}  // namespace hvl::session
