// Cuts a stream of bytes into lines and progress updates without losing, copying or tearing more
// than it must.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace hvl::launcher {

/// A piece of one stream. The texts and endings of all pieces, in order, are the stream.
struct Segment {
  enum class Ending : std::uint8_t {
    kNewline,        ///< "\n"
    kReturnNewline,  ///< "\r\n"
    kReturn,         ///< "\r": a progress bar is about to draw itself again
    kOpen,           ///< nothing yet: the line goes on in the next piece
    kCut,            ///< nothing: the line was longer than the limit, or the stream ended in it
  };
  std::string_view text;  ///< valid during the call only
  Ending ending = Ending::kNewline;
  bool after_return = false;  ///< the last ending of this stream was kReturn
  bool continues = false;     ///< the line's beginning went out as an open piece
};

/// `text` without the beginning of a UTF-8 character at its end that is not all there.
std::string_view WholeCharacters(std::string_view text);

class LineSplitter {
 public:
  using Emit = std::function<void(const Segment&)>;

  /// A line of which `max_line_bytes` have come without its end is cut there, between two UTF-8
  /// characters.
  explicit LineSplitter(std::size_t max_line_bytes) : max_line_bytes_(max_line_bytes) {}

  /// Emits every piece that `chunk` completes; keeps the rest.
  void Feed(std::string_view chunk, const Emit& emit);
  /// Emits the rest as an open piece, for somebody who is waiting to see it. Half a UTF-8 character
  /// at its end stays here.
  void FlushOpen(const Emit& emit);
  /// The stream has ended: emits the rest, if any.
  void Finish(const Emit& emit);

  /// Some bytes of a line are here, or were emitted as an open piece.
  bool in_line() const { return !kept_.empty() || open_; }
  bool has_kept_bytes() const { return !kept_.empty(); }
  /// The line that is being read began after a carriage return: it is a progress bar.
  bool in_progress_line() const { return in_line() && after_return_; }

 private:
  void EmitLine(std::string_view text, Segment::Ending ending, const Emit& emit);

  void CutAtLimit(const Emit& emit);

  const std::size_t max_line_bytes_;
  std::string kept_;           // the beginning of a line whose end has not come yet
  bool open_ = false;          // a part of this line went out as an open piece
  bool after_return_ = false;  // the last ending was a carriage return
};

}  // namespace hvl::launcher
