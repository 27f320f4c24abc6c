#include "launcher/line_splitter.h"

#include <algorithm>

namespace hvl::launcher {
namespace {

/// How many bytes at the end of `text` begin a UTF-8 character that is not complete (0 to 3).
std::size_t IncompleteTail(std::string_view text) {
  const std::size_t limit = std::min<std::size_t>(text.size(), 3);
  for (std::size_t back = 1; back <= limit; ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) == 0x80U) continue;  // a continuation byte: look further back
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

std::string_view WholeCharacters(std::string_view text) {
  return text.substr(0, text.size() - IncompleteTail(text));
}

void LineSplitter::EmitLine(std::string_view text, Segment::Ending ending, const Emit& emit) {
  if (!kept_.empty()) {
    kept_ += text;
    text = kept_;
  }
  emit({.text = text, .ending = ending, .after_return = after_return_, .continues = open_});
  kept_.clear();
  open_ = false;
  after_return_ = ending == Segment::Ending::kReturn;
}

void LineSplitter::Feed(std::string_view chunk, const Emit& emit) {
  while (!chunk.empty()) {
    const std::size_t newline = std::min(chunk.find('\n'), chunk.size());
    const std::size_t carriage_return = chunk.substr(0, newline).find('\r');
    if (carriage_return != std::string_view::npos) {
      const bool both = carriage_return + 1 == newline && newline < chunk.size();
      EmitLine(chunk.substr(0, carriage_return),
               both ? Segment::Ending::kReturnNewline : Segment::Ending::kReturn, emit);
      chunk.remove_prefix(carriage_return + (both ? 2 : 1));
    } else if (newline < chunk.size()) {
      EmitLine(chunk.substr(0, newline), Segment::Ending::kNewline, emit);
      chunk.remove_prefix(newline + 1);
    } else {
      const std::size_t room = max_line_bytes_ - std::min(max_line_bytes_, kept_.size());
      kept_ += chunk.substr(0, room);
      chunk.remove_prefix(std::min(room, chunk.size()));
      if (kept_.size() < max_line_bytes_) continue;
      CutAtLimit(emit);
    }
  }
}

void LineSplitter::CutAtLimit(const Emit& emit) {
  std::string tail = kept_.substr(WholeCharacters(kept_).size());
  if (tail.size() == kept_.size()) tail.clear();  // a limit of less than a character
  kept_.resize(kept_.size() - tail.size());
  EmitLine("", Segment::Ending::kCut, emit);
  kept_ = std::move(tail);
}

void LineSplitter::FlushOpen(const Emit& emit) {
  const std::string tail = kept_.substr(WholeCharacters(kept_).size());
  kept_.resize(kept_.size() - tail.size());
  if (!kept_.empty()) {
    emit({.text = kept_,
          .ending = Segment::Ending::kOpen,
          .after_return = after_return_,
          .continues = open_});
    open_ = true;
  }
  kept_ = tail;
}

void LineSplitter::Finish(const Emit& emit) {
  if (in_line()) EmitLine("", Segment::Ending::kCut, emit);
}

}  // namespace hvl::launcher
