// Which lines of several ranks become one, in which order they come, and when.
#include "launcher/fold.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

using namespace std::chrono_literals;

/// Ranks' streams, split and folded as Output does it. A piece that is not held is put between <>.
class Ranks {
 public:
  explicit Ranks(int count)
      : fold_(count, [this](const SharedLine& line) {
          text_ +=
              Format("[{}]{}{}\n", RankRanges(line.ranks), line.is_stderr ? "!" : "", line.text);
        }) {}

  Ranks& operator()(int rank, std::string_view bytes, bool is_stderr = false) {
    Splitter(rank, is_stderr).Feed(bytes, Take(rank, is_stderr));
    return *this;
  }
  Ranks& Open(int rank) {
    Splitter(rank, false).FlushOpen(Take(rank, false));
    return *this;
  }
  Ranks& End(int rank) {
    Splitter(rank, false).Finish(Take(rank, false));
    return *this;
  }
  Ranks& After(Duration time) {
    clock_.Advance(time);
    fold_.OnTime(clock_.Now());
    return *this;
  }
  Ranks& Flush() {
    fold_.Flush();
    return *this;
  }
  /// What has come out since the last call.
  std::string Text() { return std::exchange(text_, ""); }
  std::optional<TimePoint> deadline() const { return fold_.deadline(); }
  TimePoint now() const { return clock_.Now(); }

 private:
  LineSplitter& Splitter(int rank, bool is_stderr) {
    return splitters_.try_emplace(2 * rank + (is_stderr ? 1 : 0), Fold::kMaxBytes).first->second;
  }
  LineSplitter::Emit Take(int rank, bool is_stderr) {
    return [this, rank, is_stderr](const Segment& segment) {
      if (fold_.Hold({rank, is_stderr}, segment, clock_.Now())) return;
      text_ += Format("<{} {}>\n", rank, segment.text);
    };
  }

  ManualClock clock_;
  std::map<int, LineSplitter> splitters_;
  std::string text_;
  Fold fold_;
};

TEST_CASE("a line that all ranks print comes once, as soon as the last of them has printed it") {
  Ranks ranks(3);
  CHECK(ranks(2, "a\n")(0, "a\n").Text().empty());
  CHECK(ranks(1, "a\n").Text() == "[0-2]a\n");
  CHECK_FALSE(ranks.deadline().has_value());
}

TEST_CASE("a line of one rank waits for the window and no longer") {
  Ranks ranks(2);
  ranks(0, "a\n");
  CHECK(ranks.deadline() == ranks.now() + kFoldWindow);
  CHECK(ranks.After(kFoldWindow - 1ns).Text().empty());
  CHECK(ranks.After(1ns).Text() == "[0]a\n");
  CHECK_FALSE(ranks.deadline().has_value());
}

TEST_CASE("who prints a line within the window is named, who comes later prints it anew") {
  Ranks ranks(4);
  CHECK(ranks(0, "a\n").After(200ms)(3, "a\n").After(40ms).Text().empty());
  CHECK(ranks.After(10ms).Text() == "[0, 3]a\n");  // 250 ms after the first, not after the last
  CHECK(ranks(1, "a\n").After(kFoldWindow).Text() == "[1]a\n");
}

TEST_CASE("the only rank that is shown never waits") {
  CHECK(Ranks(1)(5, "a\nb\n").Text() == "[5]a\n[5]b\n");
}

TEST_CASE("lines come in the order in which they came first") {
  Ranks ranks(3);
  ranks(1, "b\n")(0, "a\n").After(100ms)(1, "c\n")(2, "b\n")(2, "c\n");
  CHECK(ranks.After(150ms).Text() == "[1, 2]b\n[0]a\n");
  CHECK(ranks.After(99ms).Text().empty());
  CHECK(ranks.After(1ms).Text() == "[1, 2]c\n");
}

TEST_CASE("a line that all have printed brings all before it, which nobody can join any more") {
  CHECK(Ranks(2)(0, "mine\nboth\n")(1, "both\n").Text() == "[0]mine\n[0, 1]both\n");
}

TEST_CASE("a line of one rank alone goes before the shared line that the rank prints next") {
  Ranks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    ranks(rank, Format("==\ndevice {}\n==\nstart\n", rank));
  }
  CHECK(ranks.Text() == "[0-2]==\n[0]device 0\n[1]device 1\n[2]device 2\n[0-2]==\n[0-2]start\n");
}

TEST_CASE("a line that was moved forward comes with the older line behind it, not later") {
  Ranks ranks(3);
  ranks(0, "start\n").After(200ms)(1, "device 1\nstart\n");
  CHECK(ranks.After(50ms).Text() == "[1]device 1\n[0, 1]start\n");
}

TEST_CASE("the order of each rank is kept where it forbids to fold") {
  Ranks ranks(3);
  ranks(0, "a\nb\n")(1, "b\na\n");
  CHECK(ranks.After(kFoldWindow).Text() == "[0]a\n[0, 1]b\n[1]a\n");
  ranks(0, "a\nb\n")(1, "a\nb\n")(2, "b\na\n");
  CHECK(ranks.After(kFoldWindow).Text() == "[0, 1]a\n[0-2]b\n[2]a\n");
}

TEST_CASE("a rank that prints a line twice has printed two lines") {
  Ranks ranks(3);
  CHECK(ranks(0, "a\na\n").After(kFoldWindow).Text() == "[0]a\n[0]a\n");
  CHECK(ranks(0, "\n\n")(1, "\n\n")(2, "\n\n").Text() == "[0-2]\n[0-2]\n");
}

TEST_CASE("stdout and stderr are not alike, and share the order in which they came") {
  Ranks ranks(2);
  ranks(0, "a\n")(1, "a\n", true)(0, "a\n", true);
  CHECK(ranks.Text() == "[0]a\n[0, 1]!a\n");
}

TEST_CASE("a last line without its end is not taken for a whole one") {
  Ranks ranks(3);
  ranks(0, "a\n")(1, "a").End(1)(2, "a").End(2);
  CHECK(ranks.After(kFoldWindow).Text() == "[0]a\n[1, 2]a\n");
}

TEST_CASE("lines that arrive in parts are compared when they are whole") {
  Ranks ranks(2);
  CHECK(ranks(0, "he")(1, "hell")(0, "llo\nwor")(1, "o\n").Text() == "[0, 1]hello\n");
  CHECK(ranks.After(kFoldWindow).Text().empty());
  CHECK(ranks(1, "world\n")(0, "ld\n").Text() == "[0, 1]world\n");
}

TEST_CASE("progress bars pass at once, behind what their rank has printed before") {
  Ranks ranks(2);
  CHECK(ranks(0, "10%\r")(1, "10%\r").Text() == "<0 10%>\n<1 10%>\n");
  CHECK(ranks(0, "90%\n").Text() == "<0 90%>\n");  // the end of a bar
  CHECK(ranks(1, "note\n")(0, "a\n")(1, "b\n").Text() == "<1 note>\n");
  CHECK(ranks(0, "\r").Text() == "[0]a\n<0 >\n");
  CHECK(ranks.After(kFoldWindow).Text() == "[1]b\n");
}

TEST_CASE("an unfinished line that is shown passes, and so does its end") {
  Ranks ranks(2);
  CHECK(ranks(0, "hello\nName? ").Open(0).Text() == "[0]hello\n<0 Name? >\n");
  CHECK(ranks(0, "!\n").Text() == "<0 !>\n");
  CHECK(ranks(0, "a\n")(1, "a\n").Text() == "[0, 1]a\n");
}

TEST_CASE("nothing is kept back at the end") {
  Ranks ranks(3);
  ranks(0, "a\n")(1, "b\n")(2, "a\n");
  CHECK(ranks.Flush().Text() == "[0, 2]a\n[1]b\n");
  CHECK_FALSE(ranks.deadline().has_value());
  CHECK(ranks.Flush().After(1s).Text().empty());
}

TEST_CASE("what waits is bounded in lines and in bytes: the oldest goes first") {
  Ranks ranks(2);
  for (std::size_t i = 0; i < Fold::kMaxLines; ++i) ranks(0, "x\n");
  CHECK(ranks.Text().empty());
  CHECK(ranks(1, "y\n").Text() == "[0]x\n");
  ranks.Flush().Text();

  const std::string half(Fold::kMaxBytes / 2, 'h');
  ranks(0, half + "\n")(0, half + "\n");
  CHECK(ranks.Text().empty());
  CHECK((ranks(1, "y\n").Text() == "[0]" + half + "\n"));
  const std::string big(Fold::kMaxBytes, 'b');
  CHECK((ranks(0, big).Text() == "[0]" + half + "\n[1]y\n"));
}

/// Every rank's lines, in order, out of "[0, 2-4]text".
std::map<int, std::string> LinesOfRanks(const std::string& text, int rank_count) {
  std::map<int, std::string> lines;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t close = text.find(']', at);
    const std::size_t end = text.find('\n', at);
    std::vector<int> members;
    for (std::size_t p = at + 1; p < close;) {
      std::size_t used = 0;
      const int number = std::stoi(text.substr(p), &used);
      p += used;
      const bool range = p > at + 1 && !members.empty() && text[p - used - 1] == '-';
      for (int r = range ? members.back() + 1 : number; r <= number; ++r) members.push_back(r);
      while (p < close && (text[p] == ',' || text[p] == ' ' || text[p] == '-')) ++p;
    }
    for (const int rank : members) {
      REQUIRE(rank < rank_count);
      lines[rank] += text.substr(close + 1, end - close);
    }
    at = end + 1;
  }
  return lines;
}

TEST_CASE("whatever ranks print, each one's lines come whole, in order and in time") {
  const auto seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::size_t printed = 0;
  std::size_t shown = 0;
  for (int round = 0; round < 50; ++round) {
    const int count = 2 + static_cast<int>(random() % 6);
    Ranks ranks(count);
    std::map<int, std::string> expected;
    std::string text;
    for (int step = 0; step < 300; ++step) {
      const int rank = static_cast<int>(random() % static_cast<unsigned>(count));
      const std::string line(1, static_cast<char>('a' + random() % 5));
      expected[rank] += line + "\n";
      ranks(rank, line + "\n");
      ++printed;
      if (random() % 8 == 0) ranks.After(std::chrono::milliseconds(random() % 200));
      REQUIRE(ranks.deadline().value_or(TimePoint::max()) > ranks.now());
      text += ranks.Text();
    }
    text += ranks.After(kFoldWindow).Text();
    CHECK_FALSE(ranks.deadline().has_value());
    CHECK(LinesOfRanks(text, count) == expected);
    shown += static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  CHECK(shown < printed);  // or this would not have tested much
}

}  // namespace
}  // namespace hvl::launcher
