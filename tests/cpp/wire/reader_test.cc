#include "csrc/wire/reader.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "csrc/wire/writer.h"

namespace hvl::wire {
namespace {

TEST_CASE("numbers of every size come back, in as few bytes as they need") {
  for (int bits = 0; bits <= 64; ++bits) {
    const std::uint64_t value = bits == 0 ? 0 : ~std::uint64_t{0} >> (64 - bits);
    Writer out;
    out.Varint(value);
    CHECK(out.size() == static_cast<std::size_t>(bits == 0 ? 1 : (bits + 6) / 7));
    const Bytes bytes = out.Take();
    Reader in(bytes);
    CHECK(in.Varint() == value);
    in.ExpectEnd();
    CHECK(in.ok());
  }
}

TEST_CASE("signed numbers come back") {
  constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1},
                                   std::int64_t{-64}, std::int64_t{64}, kLowest, kHighest}) {
    Writer out;
    out.Signed(value);
    const Bytes bytes = out.Take();
    Reader in(bytes);
    CHECK(in.Signed() == value);
  }
}

TEST_CASE("doubles come back bit by bit") {
  for (const double value : {0.0, -0.0, 1.0, -0.1, 1e308, 5e-324}) {
    Writer out;
    out.Double(value);
    CHECK(out.size() == 8);
    const Bytes bytes = out.Take();
    Reader in(bytes);
    CHECK(std::bit_cast<std::uint64_t>(in.Double()) == std::bit_cast<std::uint64_t>(value));
  }
}

TEST_CASE("the first fault sticks; afterwards all reads give zero") {
  const Bytes bytes = {std::byte{5}, std::byte{1}, std::byte{2}};
  Reader in(bytes);
  CHECK(in.Bounded(4, "a small number") == 0);
  CHECK_FALSE(in.ok());
  CHECK(in.remaining() == 0);
  CHECK(in.U8() == 0);
  CHECK(in.Varint() == 0);
  CHECK(in.Raw(1).empty());
  CHECK(in.Utf8(10, "text").empty());
  CHECK(in.status().message() == "byte 1 of 3: a small number is 5, the most is 4");
  CHECK(in.status().code() == StatusCode::kInternal);
}

TEST_CASE("a count is never more than what is left can hold") {
  const Bytes bytes = {std::byte{2}, std::byte{0}, std::byte{0}, std::byte{0}};
  Reader enough(bytes);
  CHECK(enough.Count(1, "items") == 2);
  Reader too_many(bytes);
  CHECK(too_many.Count(2, "items") == 0);
  CHECK_FALSE(too_many.ok());
}

TEST_CASE("UTF-8 is told from other bytes") {
  for (const char* good :
       {"", "a", "\x7f", "ü", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "名", "\xed\x9f\xbf",
        "\xee\x80\x80", "\xf0\x90\x80\x80", "🙂", "\xf4\x8f\xbf\xbf"}) {
    CHECK(IsUtf8(good));
  }
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2z", "\xe0\x9f\xbf", "\xe0\xa0",
        "\xe1\x80", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf0\x90", "\xf0\x90\x80", "\xf0\x90\x80z",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xfe"}) {
    CHECK_FALSE(IsUtf8(bad));
  }
}

}  // namespace
}  // namespace hvl::wire
