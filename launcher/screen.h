// Puts the lines of many ranks onto one screen (or file) so that none is torn: tags, progress bars,
// and what to do when one rank writes while another's line is open. Pure: appends to a string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/line_splitter.h"

namespace hvl::launcher {

struct ScreenStyle {
  bool tags = true;
  bool timestamps = false;
  bool terminal = false;  ///< bars are erased and drawn again instead of breaking the line
  bool colors = false;
  int rank_count = 0;  ///< of the job
};

/// A stream of a rank.
struct Source {
  int rank = 0;
  bool is_stderr = false;

  bool operator==(const Source&) const = default;
};

/// A whole line that these ranks have printed alike.
struct SharedLine {
  std::vector<int> ranks;  ///< ascending, at least one
  bool is_stderr = false;
  std::string text;
  Segment::Ending ending = Segment::Ending::kNewline;
};

class Screen {
 public:
  explicit Screen(ScreenStyle style) : style_(style) {}

  void Write(const Source& source, const Segment& segment, std::string* out);
  /// None of the ranks may have an open piece or a progress bar on the line it is on.
  void WriteShared(const SharedLine& line, std::string* out);
  /// hvlrun's own words: whole lines, which `text` ends with a newline.
  void WriteOwn(std::string_view text, std::string* out);

  /// How many columns of a line the tag takes.
  int TagColumns(const Source& source) const;
  const ScreenStyle& style() const { return style_; }

 private:
  enum class Cursor : std::uint8_t {
    kFresh,     ///< at the beginning of an empty line
    kReturned,  ///< at the beginning of a line that shows a progress bar
    kOpen,      ///< behind text whose line has not ended
  };

  void LeaveOthersLine(std::string* out);
  std::string TagText(std::string_view ranks, bool is_stderr) const;
  void Tag(const Source& source, std::string* out) const;

  const ScreenStyle style_;
  Cursor cursor_ = Cursor::kFresh;
  Source owner_;                   // whose line it is, unless kFresh
  bool open_is_progress_ = false;  // kOpen: the line is a progress bar
};

}  // namespace hvl::launcher
