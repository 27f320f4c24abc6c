// What happened when: events for the timeline. Names are Horovod's, so that known viewers and
// habits work.
#pragma once

#include <cstddef>
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
  /// A moment: "rank 3 ready" inside NEGOTIATE_*; or CYCLE_START on the track "", which belongs to
  /// no tensor.
  virtual void Instant(std::string_view tensor, std::string_view what, TimePoint at) = 0;
};

/// Writes the Chrome trace-event format (JSON array; chrome://tracing, Perfetto), one row per
/// tensor. A writer thread sleeps until there is work; what it has not yet written after 20 ms is
/// bounded by kQueueBytes: events beyond that are dropped, counted, and the file says so.
///
/// The file is a complete JSON document from the moment Open returns, whatever kills the process
/// (json_file.h says how). Who reads while it is written may see half of a write.
class ChromeTimeline final : public Sink {
 public:
  static constexpr std::size_t kQueueBytes = std::size_t{4} << 20;
  /// Names beyond this many get no row; their events are dropped and counted.
  static constexpr std::size_t kMaxTracks = std::size_t{1} << 18;

  /// Replaces the file. `origin` is the time 0 of the timeline. Unavailable with path and reason
  /// when the file cannot be written.
  static Result<std::unique_ptr<ChromeTimeline>> Open(const std::string& path, int rank,
                                                      TimePoint origin);
  ~ChromeTimeline() override;  ///< as Close

  void Begin(std::string_view tensor, std::string_view activity, TimePoint at) override;
  void End(std::string_view tensor, TimePoint at) override;
  void Instant(std::string_view tensor, std::string_view what, TimePoint at) override;

  /// Writes what is queued, closes the file and ends the thread; later events are ignored. Returns
  /// the first write error, after which nothing more was written. Idempotent, any thread.
  Status Close();

 private:
  class Writer;
  explicit ChromeTimeline(std::unique_ptr<Writer> writer);
  std::unique_ptr<Writer> writer_;
};

}  // namespace hvl::trace
