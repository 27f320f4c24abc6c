#include "launcher/output.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "csrc/base/str.h"
#include "launcher/errors.h"

namespace hvl::launcher {
namespace {

constexpr std::size_t kMaxLineBytes = 1 << 20;
constexpr std::size_t kMaxBacklogBytes = 1 << 20;  // then the ranks wait
constexpr std::size_t kLowBacklogBytes = 1 << 18;  // then they go on
constexpr std::size_t kErrorLines = 64;            // a traceback or two
constexpr std::size_t kErrorLineBytes = 400;
constexpr int kMinColumns = 20;
// Long enough for the rest of a line that is being written, short enough for who reads a prompt.
constexpr Duration kPromptDelay = std::chrono::milliseconds(50);

/// Ranks have as many digits as the highest one, so that a listing is in order.
std::string PaddedRank(int rank, int rank_count) {
  const std::size_t width = Format("{}", rank_count - 1).size();
  return Format("{:0{}}", rank, width);
}

/// Place of a rank's stream in Output's list.
std::uint32_t StreamIndex(int rank, bool is_stderr) {
  return 2 * static_cast<std::uint32_t>(rank) + (is_stderr ? 1 : 0);
}

/// False when the file takes no more; errno says why.
bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

struct Output::Stream {
  Stream(Source source_of, bool is_shown)
      : source(source_of), shown(is_shown), splitter(kMaxLineBytes) {}

  const Source source;
  const bool shown;
  net::UniqueFd log;
  std::string log_name;
  std::unique_ptr<Screen> log_screen;  // only where lines of the log begin with the time
  LineSplitter splitter;
};

Output::Output(OutputOptions options, int stdout_fd, int stderr_fd, Poller* poller,
               const Clock& clock, SetReading set_reading)
    : options_(std::move(options)),
      poller_(poller),
      clock_(clock),
      set_reading_(std::move(set_reading)) {
  sinks_.push_back(std::make_unique<Sink>(stdout_fd));
  if (!SameFile(stdout_fd, stderr_fd)) sinks_.push_back(std::make_unique<Sink>(stderr_fd));
  for (const std::unique_ptr<Sink>& sink : sinks_) {
    screens_.push_back(
        std::make_unique<Screen>(ScreenStyle{.tags = options_.tag_lines,
                                             .timestamps = options_.timestamps,
                                             .terminal = sink->is_terminal(),
                                             .colors = sink->is_terminal() && options_.allow_colors,
                                             .rank_count = options_.rank_count}));
  }
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    for (const bool is_stderr : {false, true}) {
      streams_.push_back(
          std::make_unique<Stream>(Source{rank, is_stderr}, options_.shown.Contains(rank)));
    }
  }
  last_errors_.resize(static_cast<std::size_t>(options_.rank_count));
  if (options_.fold) AddFolds();
}

Output::~Output() = default;

void Output::AddFolds() {
  const auto shown = std::count_if(
      streams_.begin(), streams_.end(),
      [](const std::unique_ptr<Stream>& s) { return s->shown && !s->source.is_stderr; });
  for (std::size_t i = 0; i < sinks_.size(); ++i) {
    Screen* screen = screens_[i].get();
    std::string* buffer = sinks_[i]->buffer();
    folds_.push_back(std::make_unique<Fold>(
        static_cast<int>(shown),
        [screen, buffer](const SharedLine& line) { screen->WriteShared(line, buffer); }));
  }
}

std::size_t Output::SinkIndex(const Stream& stream) const {
  return stream.source.is_stderr ? sinks_.size() - 1 : 0;
}

std::string Output::LogFolder(int rank) const {
  if (options_.log_dir.empty()) return "";
  return Format("{}/rank.{}", options_.log_dir, PaddedRank(rank, options_.rank_count));
}

Status Output::OpenLogs() {
  if (options_.log_dir.empty()) return Status::Ok();
  for (const std::unique_ptr<Stream>& stream : streams_) {
    const std::string folder = LogFolder(stream->source.rank);
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    if (failed) {
      return {StatusCode::kInvalidArgument, Format("{}: cannot make the folder {}: {}",
                                                   options_.log_option, folder, failed.message())};
    }
    if (options_.timestamps) {
      stream->log_screen = std::make_unique<Screen>(
          ScreenStyle{.tags = false, .timestamps = true, .terminal = false, .colors = false});
    }
    stream->log_name = Format("{}/{}", folder, stream->source.is_stderr ? "stderr" : "stdout");
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    stream->log = net::UniqueFd(::open(stream->log_name.c_str(), kFlags, 0666));
    if (!stream->log.valid()) {
      return {StatusCode::kInvalidArgument, Format("{}: cannot write {}: {}", options_.log_option,
                                                   stream->log_name, ErrnoText(errno))};
    }
  }
  return Status::Ok();
}

void Output::Feed(int rank, bool is_stderr, std::string_view bytes) {
  Stream* stream = streams_[StreamIndex(rank, is_stderr)].get();
  if (!stream->log_screen) WriteLog(stream, bytes);
  stream->splitter.Feed(bytes, [this, stream](const Segment& s) { Show(stream, s); });
  const bool bar = ScreenOf(*stream).style().terminal && stream->splitter.in_progress_line();
  if (bar) ShowOpenLine(stream);
  if (options_.prompt_rank == rank && stream->splitter.has_kept_bytes()) {
    prompt_at_ = clock_.Now() + kPromptDelay;
  }
  AfterWrite(SinkIndex(*stream));
}

void Output::EndStream(int rank, bool is_stderr) {
  Stream* stream = streams_[StreamIndex(rank, is_stderr)].get();
  stream->splitter.Finish([this, stream](const Segment& s) { Show(stream, s); });
  stream->log.Reset();
  AfterWrite(SinkIndex(*stream));
}

void Output::Show(Stream* stream, const Segment& segment) {
  if (stream->source.is_stderr) Remember(stream, segment);
  if (stream->log_screen) {
    std::string stamped;
    stream->log_screen->Write(stream->source, segment, &stamped);
    WriteLog(stream, stamped);
  }
  if (!stream->shown) return;
  const bool held =
      !folds_.empty() && folds_[SinkIndex(*stream)]->Hold(stream->source, segment, clock_.Now());
  if (!held) ScreenOf(*stream).Write(stream->source, segment, SinkOf(*stream).buffer());
}

void Output::Remember(Stream* stream, const Segment& segment) {
  const bool bar = segment.ending == Segment::Ending::kReturn;
  if (bar || segment.ending == Segment::Ending::kOpen || segment.text.empty()) return;
  std::deque<std::string>& lines = last_errors_[static_cast<std::size_t>(stream->source.rank)];
  if (lines.size() == kErrorLines) lines.pop_front();
  lines.emplace_back(WholeCharacters(segment.text.substr(0, kErrorLineBytes)));
}

void Output::ShowOpenLine(Stream* stream) {
  stream->splitter.FlushOpen([this, stream](const Segment& s) { Show(stream, s); });
}

std::optional<TimePoint> Output::deadline() const {
  std::optional<TimePoint> first = prompt_at_;
  for (const std::unique_ptr<Fold>& fold : folds_) {
    const std::optional<TimePoint> due = fold->deadline();
    if (due && (!first || *due < *first)) first = due;
  }
  return first;
}

void Output::OnTime(TimePoint now) {
  for (std::size_t i = 0; i < folds_.size(); ++i) {
    const std::optional<TimePoint> due = folds_[i]->deadline();
    if (!due || now < *due) continue;
    folds_[i]->OnTime(now);
    AfterWrite(i);
  }
  if (!prompt_at_ || now < *prompt_at_) return;
  prompt_at_.reset();
  for (const bool is_stderr : {false, true}) {
    Stream* stream = streams_[StreamIndex(*options_.prompt_rank, is_stderr)].get();
    ShowOpenLine(stream);
    AfterWrite(SinkIndex(*stream));
  }
}

void Output::WriteLog(Stream* stream, std::string_view bytes) {
  if (!stream->log.valid() || WriteAll(stream->log.get(), bytes)) return;
  const std::string problem = ErrnoText(errno);
  stream->log.Reset();
  Say(Format("cannot write {}: {}; the file ends here, the job goes on", stream->log_name,
             problem));
}

void Output::AfterWrite(std::size_t index) {
  Sink& sink = *sinks_[index];
  sink.Flush();
  const bool behind = sink.backlog_bytes() > 0;
  if (behind && !sink_watched_.at(index)) {
    sink_watched_.at(index) = poller_->WatchWritable(
        sink.fd(), {.kind = Token::Kind::kSink, .index = static_cast<std::uint32_t>(index)});
  } else if (!behind && sink_watched_.at(index)) {
    poller_->Forget(sink.fd());
    sink_watched_.at(index) = false;
  }
  if (sink.backlog_bytes() > kMaxBacklogBytes) PauseOrResume(index, false);
  if (sink.backlog_bytes() < kLowBacklogBytes) PauseOrResume(index, true);
  if (sink.error() != 0 && sink.error() != ECANCELED && !sink_reported_.at(index)) {
    sink_reported_.at(index) = true;
    Say(
        Format("cannot write to standard {}: {}; what the ranks print there is lost from here on, "
               "the job goes on",
               index == 0 ? "output" : "error", ErrnoText(sink.error())));
  }
}

void Output::PauseOrResume(std::size_t sink, bool on) {
  if (reading_paused_.at(sink) == !on) return;
  reading_paused_.at(sink) = !on;
  for (const bool is_stderr : {false, true}) {
    if ((is_stderr ? sinks_.size() - 1 : 0) == sink) set_reading_(is_stderr, on);
  }
}

void Output::OnWritable(std::uint32_t sink) { AfterWrite(sink); }

void Output::ShowHeld() {
  for (std::size_t i = 0; i < folds_.size(); ++i) {
    folds_[i]->Flush();
    AfterWrite(i);
  }
}

void Output::AbandonScreen() {
  for (std::size_t i = 0; i < sinks_.size(); ++i) {
    sinks_[i]->Abandon();
    AfterWrite(i);
  }
}

bool Output::all_written() const {
  return std::all_of(sinks_.begin(), sinks_.end(),
                     [](const std::unique_ptr<Sink>& s) { return s->backlog_bytes() == 0; });
}

std::optional<ScreenSize> Output::screen_size() const {
  winsize size{};
  if (::ioctl(sinks_.back()->fd(), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  const Source longest{.rank = options_.rank_count - 1, .is_stderr = true};
  const int tag = screens_.back()->TagColumns(longest);
  return ScreenSize{.columns = std::max(size.ws_col - tag, kMinColumns), .lines = size.ws_row};
}

void Output::Say(std::string_view text) {
  ShowHeld();
  const std::size_t last = sinks_.size() - 1;
  const std::size_t index = sinks_[last]->error() == 0 ? last : 0;
  screens_[index]->WriteOwn(Format("hvlrun: {}\n", text), sinks_[index]->buffer());
  AfterWrite(index);
}

const std::deque<std::string>& Output::LastErrorLines(int rank) const {
  return last_errors_[static_cast<std::size_t>(rank)];
}

}  // namespace hvl::launcher
