// The ranks' output on its way: from what they wrote, line by line, to the screen and the log
// files.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/net/fd.h"
#include "horovodlite/status.h"
#include "launcher/fold.h"
#include "launcher/line_splitter.h"
#include "launcher/options.h"
#include "launcher/poller.h"
#include "launcher/screen.h"
#include "launcher/sink.h"

namespace hvl::launcher {

struct OutputOptions {
  int rank_count = 1;
  bool tag_lines = true;
  bool timestamps = false;
  bool allow_colors = true;
  bool fold = false;                     ///< a line that several ranks print is shown once
  std::string log_dir;                   ///< "" = no log files
  std::string log_option = "--log-dir";  ///< by which the user has asked for them
  RankSet shown;
  std::optional<int> prompt_rank;  ///< whose unfinished lines are shown: somebody answers them
};

struct ScreenSize {
  int columns = 0;
  int lines = 0;
};

/// All on one thread. Never waits for the screen: what it does not take stays here, and beyond a
/// limit the ranks' streams are to be left unread, so that the ranks wait. Log files are written at
/// once.
class Output {
 public:
  /// Whether to read one of the two streams of the ranks that are shown.
  using SetReading = std::function<void(bool is_stderr, bool on)>;

  /// `stdout_fd` and `stderr_fd` are where the screen is; may be the same terminal.
  Output(OutputOptions options, int stdout_fd, int stderr_fd, Poller* poller, const Clock& clock,
         SetReading set_reading);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// Makes the log folders and files, if asked for. Before any rank is started.
  Status OpenLogs();

  /// What a rank has written; it may come while the stream is left unread.
  void Feed(int rank, bool is_stderr, std::string_view bytes);
  /// Nothing more comes; may be said twice.
  void EndStream(int rank, bool is_stderr);
  void OnWritable(std::uint32_t sink);
  /// Shows what has waited long enough: unfinished lines, and lines that others might print too.
  void OnTime(TimePoint now);
  std::optional<TimePoint> deadline() const;

  /// Shows the lines that wait for other ranks to print them too.
  void ShowHeld();
  /// Nobody looks at the screen any more: drops what it has not taken, and what follows.
  void AbandonScreen();
  /// The screen has taken everything.
  bool all_written() const;

  /// The room that a rank's line has beside its tag, when stderr is a terminal: progress bars go
  /// there, and one that is too long for its line cannot be drawn over.
  std::optional<ScreenSize> screen_size() const;

  /// A line of hvlrun itself, on stderr.
  void Say(std::string_view text);
  /// The last lines that a rank wrote to stderr, oldest first.
  const std::deque<std::string>& LastErrorLines(int rank) const;
  /// Where the files of a rank are: "DIR/rank.3"; "" without log files.
  std::string LogFolder(int rank) const;

 private:
  struct Stream;

  Sink& SinkOf(const Stream& stream) { return *sinks_[SinkIndex(stream)]; }
  std::size_t SinkIndex(const Stream& stream) const;
  Screen& ScreenOf(const Stream& stream) { return *screens_[SinkIndex(stream)]; }
  void AddFolds();
  void Show(Stream* stream, const Segment& segment);
  void Remember(Stream* stream, const Segment& segment);
  void ShowOpenLine(Stream* stream);
  void WriteLog(Stream* stream, std::string_view bytes);
  void AfterWrite(std::size_t sink);
  void PauseOrResume(std::size_t sink, bool on);

  const OutputOptions options_;
  Poller* const poller_;
  const Clock& clock_;
  const SetReading set_reading_;
  std::vector<std::unique_ptr<Sink>> sinks_;      // one, or stdout's and stderr's
  std::vector<std::unique_ptr<Screen>> screens_;  // one per sink
  std::vector<std::unique_ptr<Fold>> folds_;      // one per sink, or none at all
  std::array<bool, 2> sink_watched_{};
  std::array<bool, 2> sink_reported_{};
  std::array<bool, 2> reading_paused_{};
  std::vector<std::unique_ptr<Stream>> streams_;      // by 2 * rank + (1 for stderr)
  std::vector<std::deque<std::string>> last_errors_;  // by rank
  std::optional<TimePoint> prompt_at_;
};

}  // namespace hvl::launcher
