// What happened when: events for the timeline. Names are Horovod's, so that known viewers and
// habits work.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "csrc/base/clock.h"
#include "horovodlite/status.h"

namespace hvl::trace {

/// Receives events. Any thread; must be cheap and never block on IO. Nested activities of one
/// tensor are closed in reverse order. Activity names: NEGOTIATE_ALLREDUCE, QUEUE, ALLREDUCE,
/// LOCAL_ALLREDUCE, ...
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void Begin(std::string_view tensor, std::string_view activity, TimePoint at) = 0;
  virtual void End(std::string_view tensor, TimePoint at) = 0;
  /// A moment, e.g. "rank 3 ready" inside NEGOTIATE_*, or CYCLE_START on the track "".
  virtual void Instant(std::string_view tensor, std::string_view what, TimePoint at) = 0;
};

/// Writes the Chrome trace-event format (JSON array; chrome://tracing, Perfetto), one row per
/// tensor. The file is valid JSON after every flush, also after a crash. A writer thread sleeps
/// until there is work.
class ChromeTimeline final : public Sink {
 public:
  /// Unavailable with path and reason when the file cannot be written.
  static Result<std::unique_ptr<ChromeTimeline>> Open(const std::string& path, int rank,
                                                      TimePoint origin);
  ~ChromeTimeline() override;  ///< flushes and closes

  void Begin(std::string_view tensor, std::string_view activity, TimePoint at) override;
  void End(std::string_view tensor, TimePoint at) override;
  void Instant(std::string_view tensor, std::string_view what, TimePoint at) override;

 private:
  class Writer;
  explicit ChromeTimeline(std::unique_ptr<Writer> writer);
  std::unique_ptr<Writer> writer_;
};

}  // namespace hvl::trace
