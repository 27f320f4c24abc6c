#include "launcher/screen.h"

#include <array>
#include <ctime>

#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr std::string_view kBold = "\x1b[1m";  // of several ranks, which have no color in common
constexpr std::string_view kColorEnd = "\x1b[0m";
// Not red, which reads as an error, and not black or white, which may be the background.
constexpr std::array<std::string_view, 5> kColors = {"\x1b[32m", "\x1b[36m", "\x1b[33m", "\x1b[35m",
                                                     "\x1b[34m"};

/// As Horovod writes it: "Sun Nov 29 15:22:01 2026".
std::string LocalTime() {
  std::timespec now{};
  std::timespec_get(&now, TIME_UTC);
  std::tm fields{};
  ::localtime_r(&now.tv_sec, &fields);
  std::array<char, 64> text{};
  const std::size_t length =
      std::strftime(text.data(), text.size(), "%a %b %e %H:%M:%S %Y", &fields);
  return {text.data(), length};
}

}  // namespace

std::string Screen::TagText(std::string_view ranks, bool is_stderr) const {
  const std::string time = style_.timestamps ? LocalTime() : "";
  if (!style_.tags) return time.empty() ? "" : time + ": ";
  return Format("{}[{}]<{}>:", time, ranks, is_stderr ? "stderr" : "stdout");
}

int Screen::TagColumns(const Source& source) const {
  return static_cast<int>(TagText(Format("{}", source.rank), source.is_stderr).size());
}

void Screen::Tag(const Source& source, std::string* out) const {
  if (style_.colors) *out += kColors[static_cast<std::size_t>(source.rank) % kColors.size()];
  *out += TagText(Format("{}", source.rank), source.is_stderr);
  if (style_.colors) *out += kColorEnd;
}

void Screen::LeaveOthersLine(std::string* out) {
  if (cursor_ == Cursor::kFresh) return;
  // A bar on a terminal is drawn again by its rank, so it may be erased; anything else is kept.
  const bool bar = cursor_ == Cursor::kReturned || open_is_progress_;
  *out += style_.terminal && bar ? kEraseLine : "\n";
  cursor_ = Cursor::kFresh;
}

void Screen::Write(const Source& source, const Segment& segment, std::string* out) {
  using Ending = Segment::Ending;
  const bool mine = cursor_ != Cursor::kFresh && owner_ == source;
  const bool bare = segment.text.empty();
  const bool returned = segment.after_return && cursor_ != Cursor::kOpen;
  // "\r" and "\n" of one line ending came in two chunks; between them others may have left the
  // line.
  if (bare && segment.ending == Ending::kNewline && returned) {
    if (mine) *out += '\n';
    if (mine) cursor_ = Cursor::kFresh;
    return;
  }
  if (bare && !mine) {
    // The end of a line that another rank has already broken off.
    if (segment.continues && segment.ending != Ending::kReturn) return;
    // A bar begins with a return: nothing to see, so it takes no line from anybody.
    if (segment.ending == Ending::kReturn) {
      if (cursor_ == Cursor::kFresh) *out += '\r';
      return;
    }
  }
  if (!mine) LeaveOthersLine(out);
  const bool starts_line = cursor_ != Cursor::kOpen;
  if (starts_line && !(bare && segment.ending == Ending::kReturn)) Tag(source, out);
  *out += segment.text;
  owner_ = source;
  switch (segment.ending) {
    case Ending::kNewline:
    case Ending::kCut:
      *out += '\n';
      cursor_ = Cursor::kFresh;
      break;
    case Ending::kReturnNewline:
      *out += "\r\n";
      cursor_ = Cursor::kFresh;
      break;
    case Ending::kReturn:
      *out += '\r';
      cursor_ = Cursor::kReturned;
      break;
    case Ending::kOpen:
      open_is_progress_ = segment.after_return;
      cursor_ = Cursor::kOpen;
      break;
  }
}

void Screen::WriteShared(const SharedLine& line, std::string* out) {
  if (line.ranks.size() == 1) {
    const Source source{.rank = line.ranks.front(), .is_stderr = line.is_stderr};
    return Write(source, {.text = line.text, .ending = line.ending}, out);
  }
  const bool all = line.ranks.size() == static_cast<std::size_t>(style_.rank_count);
  LeaveOthersLine(out);
  if (style_.colors) *out += kBold;
  *out +=
      TagText(all ? Format("all {}", style_.rank_count) : RankRanges(line.ranks), line.is_stderr);
  if (style_.colors) *out += kColorEnd;
  *out += line.text;
  *out += line.ending == Segment::Ending::kReturnNewline ? "\r\n" : "\n";
}

void Screen::WriteOwn(std::string_view text, std::string* out) {
  LeaveOthersLine(out);
  *out += text;
}

}  // namespace hvl::launcher
