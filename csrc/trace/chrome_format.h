// Events as text in the Chrome trace-event format. Horovod's habits: a tensor is a "process" whose
// name is the tensor's, process 0 is the rank itself, a rank that becomes ready is an event of no
// duration ("X") on the tensor's row, and a mark that belongs to no tensor is global ("i").
// Format: "Trace Event Format", Google, 2016.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "csrc/base/clock.h"
#include "csrc/trace/event_queue.h"

namespace hvl::trace {

/// A JSON string literal. Bytes that are not UTF-8 become U+FFFD; what exceeds kMaxNameBytes is
/// replaced by three dots, so that every element has a limited size.
inline constexpr std::size_t kMaxNameBytes = 512;
std::string JsonString(std::string_view text);

/// The metadata of process 0. `epoch_us` is the wall-clock time of the origin, which lets files of
/// several ranks be laid over each other.
std::string ProcessZero(int rank, std::int64_t epoch_us);

class ChromeFormatter {
 public:
  /// `emit` receives JSON objects, one at a time.
  ChromeFormatter(TimePoint origin, std::size_t max_tracks,
                  std::function<void(std::string_view)> emit)
      : origin_(origin), max_tracks_(max_tracks), emit_(std::move(emit)) {}

  /// Emits the event, after the metadata of a tensor seen for the first time. An end without a
  /// beginning is left out. False: not emitted, because there are too many rows.
  bool Add(const Event& event);

  /// To be called where events are missing: ends what is open, because its end may be among them,
  /// and marks the place with the number.
  void AddDropped(std::uint64_t dropped);

 private:
  struct Track {
    std::size_t pid = 0;
    std::size_t open = 0;  // activities begun and not ended
  };
  /// For std::string keys and std::string_view questions.
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  Track* FindOrAddTrack(std::string_view tensor);
  double Micros(TimePoint at) const;

  const TimePoint origin_;
  const std::size_t max_tracks_;
  const std::function<void(std::string_view)> emit_;
  TimePoint last_{};  // of the events so far
  std::unordered_map<std::string, Track, Hash, std::equal_to<>> tracks_;
};

}  // namespace hvl::trace
