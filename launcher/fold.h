// Shows a line that several ranks print alike once, with all their numbers: holds lines back for a
// moment to see who else prints them. Pure: pieces and the time go in, whole lines come out.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <optional>
#include <unordered_map>

#include "csrc/base/clock.h"
#include "launcher/line_splitter.h"
#include "launcher/screen.h"

namespace hvl::launcher {

/// Ranks in step print the same line within milliseconds; who reads along does not notice this.
inline constexpr Duration kFoldWindow = std::chrono::milliseconds(250);

/// What waits is a list in the order in which it will be shown. The lines of each rank keep their
/// order. Otherwise what has come first is first, except that a line of one rank alone goes before
/// a line that it prints next and others have printed already: "device 0", "start" of rank 0, then
/// "device 1", "start" of rank 1 become device 0, device 1, start. Time per line: constant unless
/// others have printed the same, then at most a pass over what waits.
class Fold {
 public:
  using Emit = std::function<void(const SharedLine&)>;
  static constexpr std::size_t kMaxLines = 16384;    // as many as a full pipe may hold
  static constexpr std::size_t kMaxBytes = 1 << 20;  // of text

  /// A line that all of the `writers` ranks have printed is shown at once, and all before it.
  Fold(int writers, Emit emit)
      : writers_(static_cast<std::size_t>(writers)), emit_(std::move(emit)) {}

  /// Takes a whole line, to emit it within kFoldWindow; sooner when there are too many. False for a
  /// piece of a progress bar or of an unfinished line: the caller shows it now; the lines that its
  /// rank printed before have been emitted.
  bool Hold(const Source& source, const Segment& segment, TimePoint now);
  /// Emits what has waited long enough.
  void OnTime(TimePoint now);
  /// Emits everything.
  void Flush();
  /// When to call OnTime() next; nothing waits without one.
  std::optional<TimePoint> deadline() const;

 private:
  struct Held {
    SharedLine line;
    std::size_t hash = 0;
    TimePoint since;
  };
  /// How many lines with one hash are held, and how many of them a rank has printed: the rest is
  /// what it may join. Saves the search in a flood, be its lines all different or all the same.
  struct Alike {
    std::size_t lines = 0;
    std::unordered_map<int, std::size_t> lines_of_rank;
  };
  using Position = std::list<Held>::iterator;

  Position FindSame(const Held& wanted);
  void EmitThrough(Position last);

  const std::size_t writers_;
  const Emit emit_;
  std::list<Held> held_;
  std::size_t held_bytes_ = 0;
  std::unordered_map<int, Position> last_of_rank_;  // the last held line of a rank
  std::unordered_map<std::size_t, Alike> alike_;    // by hash
  TimePoint deadline_;                              // no later than that of any held line
};

}  // namespace hvl::launcher
