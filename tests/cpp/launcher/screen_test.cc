// What a person sees when several ranks write at once.
#include "launcher/screen.h"

#include <catch2/catch.hpp>

#include <map>

namespace hvl::launcher {
namespace {

/// Ranks' streams, split and shown on one screen, as Output does it.
class Show {
 public:
  explicit Show(ScreenStyle style = {}) : screen_(style) {}

  Show& operator()(int rank, std::string_view bytes, bool is_stderr = false) {
    LineSplitter& splitter = Splitter(rank, is_stderr);
    splitter.Feed(bytes, Emit(rank, is_stderr));
    if (screen_.style().terminal && splitter.in_progress_line()) Open(rank, is_stderr);
    return *this;
  }
  Show& Open(int rank, bool is_stderr = false) {
    Splitter(rank, is_stderr).FlushOpen(Emit(rank, is_stderr));
    return *this;
  }
  Show& End(int rank) {
    Splitter(rank, false).Finish(Emit(rank, false));
    return *this;
  }
  Show& Own(std::string_view text) {
    screen_.WriteOwn(text, &text_);
    return *this;
  }
  Show& Shared(const SharedLine& line) {
    screen_.WriteShared(line, &text_);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  LineSplitter& Splitter(int rank, bool is_stderr) {
    return splitters_.try_emplace(2 * rank + (is_stderr ? 1 : 0), 1 << 20).first->second;
  }
  LineSplitter::Emit Emit(int rank, bool is_stderr) {
    return [this, rank, is_stderr](const Segment& segment) {
      screen_.Write({rank, is_stderr}, segment, &text_);
    };
  }

  Screen screen_;
  std::map<int, LineSplitter> splitters_;
  std::string text_;
};

constexpr ScreenStyle kTerminal{
    .tags = true, .timestamps = false, .terminal = true, .colors = false};

TEST_CASE("each line begins with the rank and the stream") {
  CHECK(Show()(0, "a\n")(1, "b\n", true)(0, "\n").text() ==
        "[0]<stdout>:a\n[1]<stderr>:b\n[0]<stdout>:\n");
}

TEST_CASE("lines that arrive in parts are not mixed") {
  CHECK(Show()(0, "he")(1, "wor")(0, "llo\n")(1, "ld\n").text() ==
        "[0]<stdout>:hello\n[1]<stdout>:world\n");
}

TEST_CASE("a last line without newline gets one") {
  CHECK(Show()(0, "x").End(0)(1, "y\n").text() == "[0]<stdout>:x\n[1]<stdout>:y\n");
}

TEST_CASE("without tags the bytes are as the rank wrote them") {
  const ScreenStyle plain{.tags = false, .timestamps = false, .terminal = false, .colors = false};
  CHECK(Show(plain)(0, "a\r\nb\n\rc\r").text() == "a\r\nb\n\rc\r");
}

TEST_CASE("a time stamp stands before the tag") {
  const ScreenStyle stamped{.tags = true, .timestamps = true, .terminal = false, .colors = false};
  const std::string text = Show(stamped)(0, "a\n").text();
  CHECK_THAT(text, Catch::Matches("[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4}"
                                  "\\[0\\]<stdout>:a\n"));
}

TEST_CASE("a time stamp without a tag is kept apart from the line") {
  const ScreenStyle stamped{.tags = false, .timestamps = true, .terminal = false, .colors = false};
  CHECK_THAT(Show(stamped)(0, "a\n").text(), Catch::Matches("[A-Z].* [0-9:]{8} [0-9]{4}: a\n"));
}

TEST_CASE("colours touch the tag only") {
  const ScreenStyle colored{.tags = true, .timestamps = false, .terminal = true, .colors = true};
  CHECK(Show(colored)(0, "a\n").text() == "\x1b[32m[0]<stdout>:\x1b[0ma\n");
}

TEST_CASE("a progress bar in a file is one tagged piece per update") {
  CHECK(Show()(0, "\r 0%", true)(0, "\r50%", true)(0, "\r99%\n", true).text() ==
        "\r[0]<stderr>: 0%\r[0]<stderr>:50%\r[0]<stderr>:99%\n");
}

TEST_CASE("another rank's line does not hide in a progress bar in a file") {
  CHECK(Show()(0, "50%\r")(1, "hello\n")(0, "60%\r").text() ==
        "[0]<stdout>:50%\r\n[1]<stdout>:hello\n[0]<stdout>:60%\r");
}

TEST_CASE("on a terminal a progress bar is shown before its next update comes") {
  Show show(kTerminal);
  CHECK(show(0, "\r10%").text() == "\r[0]<stdout>:10%");
  CHECK(show(0, "\r20%").text() == "\r[0]<stdout>:10%\r[0]<stdout>:20%");
  CHECK(show(0, "\n").text() == "\r[0]<stdout>:10%\r[0]<stdout>:20%\n");
}

TEST_CASE("on a terminal another rank's line takes the place of the bar, which is drawn again") {
  CHECK(Show(kTerminal)(0, "\r10%")(1, "hello\n")(0, "\r20%").text() ==
        "\r[0]<stdout>:10%\r\x1b[K[1]<stdout>:hello\n\r[0]<stdout>:20%");
}

TEST_CASE("a bar that was erased in the middle of its line leaves no empty line") {
  CHECK(Show(kTerminal)(0, "\r99%")(1, "hello\n")(0, "\n").text() ==
        "\r[0]<stdout>:99%\r\x1b[K[1]<stdout>:hello\n");
}

TEST_CASE("a prompt stays when another rank writes") {
  CHECK(Show(kTerminal)(0, "Name? ").Open(0)(1, "hello\n").text() ==
        "[0]<stdout>:Name? \n[1]<stdout>:hello\n");
}

TEST_CASE("CRLF that was cut in two is one ending, also with another rank in between") {
  CHECK(Show()(0, "a\r")(0, "\nb\n").text() == "[0]<stdout>:a\r\n[0]<stdout>:b\n");
  CHECK(Show()(0, "a\r")(1, "x\n")(0, "\nb\n").text() ==
        "[0]<stdout>:a\r\n[1]<stdout>:x\n[0]<stdout>:b\n");
}

TEST_CASE("a line of several ranks names them, or that it is of all") {
  const ScreenStyle eight{.rank_count = 8};
  CHECK(Show(eight).Shared({.ranks = {3}, .text = "a"}).text() == "[3]<stdout>:a\n");
  CHECK(Show(eight).Shared({.ranks = {0, 2, 3, 4}, .is_stderr = true, .text = "a"}).text() ==
        "[0, 2-4]<stderr>:a\n");
  CHECK(Show(eight).Shared({.ranks = {0, 1, 2, 3, 4, 5, 6, 7}, .text = "a"}).text() ==
        "[all 8]<stdout>:a\n");
  CHECK(Show({.tags = false, .rank_count = 8}).Shared({.ranks = {0, 1}, .text = "a"}).text() ==
        "a\n");
  CHECK(Show({.terminal = true, .colors = true}).Shared({.ranks = {0, 1}, .text = "a"}).text() ==
        "\x1b[1m[0, 1]<stdout>:\x1b[0ma\n");
}

TEST_CASE("a line of several ranks keeps its kind of ending, and gets one if it has none") {
  using Ending = Segment::Ending;
  CHECK(Show().Shared({.ranks = {0, 1}, .text = "a", .ending = Ending::kReturnNewline}).text() ==
        "[0, 1]<stdout>:a\r\n");
  CHECK(Show().Shared({.ranks = {0, 1}, .text = "a", .ending = Ending::kCut}).text() ==
        "[0, 1]<stdout>:a\n");
}

TEST_CASE("a line of several ranks takes the place of a bar, and leaves a prompt alone") {
  CHECK(Show(kTerminal)(2, "\r10%").Shared({.ranks = {0, 1}, .text = "a"})(2, "\r20%").text() ==
        "\r[2]<stdout>:10%\r\x1b[K[0, 1]<stdout>:a\n\r[2]<stdout>:20%");
  CHECK(Show()(2, "Name? ").Open(2).Shared({.ranks = {0, 1}, .text = "a"}).text() ==
        "[2]<stdout>:Name? \n[0, 1]<stdout>:a\n");
}

TEST_CASE("hvlrun's own words begin a line of their own") {
  CHECK(Show()(0, "50%\r").Own("hvlrun: x\n")(1, "y\n").text() ==
        "[0]<stdout>:50%\r\nhvlrun: x\n[1]<stdout>:y\n");
}

}  // namespace
}  // namespace hvl::launcher
