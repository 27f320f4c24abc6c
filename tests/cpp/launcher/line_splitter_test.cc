// The pieces of a stream are the stream: nothing is lost, doubled or torn, however it is chopped.
#include "launcher/line_splitter.h"

#include <catch2/catch.hpp>

#include <random>
#include <vector>

namespace hvl::launcher {
namespace {

using Ending = Segment::Ending;

struct Piece {
  std::string text;
  Ending ending;
  bool operator==(const Piece&) const = default;
};

std::string_view EndingBytes(Ending ending) {
  switch (ending) {
    case Ending::kNewline:
      return "\n";
    case Ending::kReturnNewline:
      return "\r\n";
    case Ending::kReturn:
      return "\r";
    case Ending::kOpen:
    case Ending::kCut:
      return "";
  }
  return "";
}

class Collector {
 public:
  explicit Collector(std::size_t max_line_bytes = 1 << 20) : splitter(max_line_bytes) {}

  void Feed(std::string_view chunk) { splitter.Feed(chunk, emit); }
  void FlushOpen() { splitter.FlushOpen(emit); }
  void Finish() { splitter.Finish(emit); }
  std::string Joined() const {
    std::string all;
    for (const Piece& piece : pieces) all += piece.text + std::string(EndingBytes(piece.ending));
    return all;
  }

  LineSplitter splitter;
  std::vector<Piece> pieces;
  LineSplitter::Emit emit = [this](const Segment& s) {
    pieces.push_back({std::string(s.text), s.ending});
  };
};

TEST_CASE("lines come out whole, and the rest is kept until its end comes") {
  Collector c;
  c.Feed("one\ntw");
  CHECK(c.pieces == std::vector<Piece>{{"one", Ending::kNewline}});
  CHECK(c.splitter.has_kept_bytes());
  c.Feed("o\n\n");
  CHECK(c.pieces == std::vector<Piece>{{"one", Ending::kNewline},
                                       {"two", Ending::kNewline},
                                       {"", Ending::kNewline}});
  CHECK_FALSE(c.splitter.in_line());
}

TEST_CASE("a last line without a newline comes out when the stream ends") {
  Collector c;
  c.Feed("a\nb");
  c.Finish();
  CHECK(c.pieces.back() == Piece{"b", Ending::kCut});
  c.Finish();
  CHECK(c.pieces.size() == 2);
}

TEST_CASE("a carriage return ends a piece at once, without waiting for what follows") {
  Collector c;
  c.Feed("10%\r");
  CHECK(c.pieces == std::vector<Piece>{{"10%", Ending::kReturn}});
  c.Feed("20%\r30%");
  CHECK(c.pieces.back() == Piece{"20%", Ending::kReturn});
  CHECK(c.splitter.in_progress_line());
  c.Feed("\n");
  CHECK(c.pieces.back() == Piece{"30%", Ending::kNewline});
  CHECK_FALSE(c.splitter.in_progress_line());
}

TEST_CASE("CRLF is one ending, also when it is cut between two chunks") {
  Collector c;
  c.Feed("a\r\nb\r");
  c.Feed("\nc\n");
  CHECK(c.Joined() == "a\r\nb\r\nc\n");
  CHECK(c.pieces.front() == Piece{"a", Ending::kReturnNewline});
}

TEST_CASE("an open piece shows the line so far, and the line goes on after it") {
  Collector c;
  c.Feed("Name? ");
  c.FlushOpen();
  CHECK(c.pieces == std::vector<Piece>{{"Name? ", Ending::kOpen}});
  CHECK(c.splitter.in_line());
  c.FlushOpen();
  CHECK(c.pieces.size() == 1);
  c.Feed("yes\n");
  CHECK(c.pieces.back() == Piece{"yes", Ending::kNewline});
}

TEST_CASE("half a character stays behind when a line is shown or cut") {
  Collector open;
  open.Feed("h\xc3");
  open.FlushOpen();
  CHECK(open.pieces == std::vector<Piece>{{"h", Ending::kOpen}});
  open.Feed("\xa9!");
  open.FlushOpen();
  CHECK(open.pieces.back() == Piece{"\xc3\xa9!", Ending::kOpen});

  Collector cut(4);
  cut.Feed(
      "abc\xe2\x82\xac"
      "def");
  cut.Feed("\n");
  CHECK(cut.pieces == std::vector<Piece>{{"abc", Ending::kCut},
                                         {"\xe2\x82\xac"
                                          "d",
                                          Ending::kCut},
                                         {"ef", Ending::kNewline}});
}

TEST_CASE("a line whose end does not come is cut at the limit, and no byte is lost") {
  Collector c(1000);
  const std::string line(2500, 'x');
  c.Feed(line);
  CHECK(c.pieces.size() == 2);
  c.Feed("\n");
  CHECK(c.Joined() == line + "\n");
}

TEST_CASE("bytes that are no UTF-8 pass unchanged") {
  Collector c(8);
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const std::string continuation(40, '\x80');
  c.Feed(all + continuation);
  c.Finish();
  CHECK(c.Joined() == all + continuation);
}

TEST_CASE("however a stream is chopped, the pieces put together are the stream") {
  const auto seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::string alphabet = std::string("ab\n\r\xc3\xa9\xf0\x9f\x98\x80\xff") + '\0';
  for (int round = 0; round < 300; ++round) {
    std::string stream;
    const std::size_t length = random() % 400;
    for (std::size_t i = 0; i < length; ++i) stream += alphabet[random() % alphabet.size()];
    Collector c(1 + random() % 40);
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t count = 1 + random() % 30;
      c.Feed(std::string_view(stream).substr(at, count));
      if (random() % 4 == 0) c.FlushOpen();
      at += count;
    }
    c.Finish();
    REQUIRE(c.Joined() == stream);
  }
}

}  // namespace
}  // namespace hvl::launcher
