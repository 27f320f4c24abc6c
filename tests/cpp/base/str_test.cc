// Format: {fmt} is compiled in by hand (base/fmt.cc), so each kind of argument is tried once.
#include "csrc/base/str.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <string_view>

namespace hvl {
namespace {

TEST_CASE("texts, integers, booleans and pointers are formatted") {
  CHECK(Format("{} {} {}", "a", std::string("b"), std::string_view("c")) == "a b c");
  CHECK(Format("{} {}", std::numeric_limits<std::int64_t>::min(),
               std::numeric_limits<std::uint64_t>::max()) ==
        "-9223372036854775808 18446744073709551615");
  CHECK(Format("{} {:x} {:08b} {:>4}|{:<4}|{:^4}", true, 255, 5, "r", "l", "m") ==
        "true ff 00000101    r|l   | m  ");
  CHECK(Format("{}", static_cast<const void*>(nullptr)) == "0x0");
}

TEST_CASE("floating-point numbers are shortest round-trip unless a precision is given") {
  CHECK(Format("{} {} {}", 0.1, 1.0f / 3.0f, 120.0) == "0.1 0.33333334 120");
  CHECK(Format("{:.3f} {:.2e} {:g}", 3.14159, 12345.678, 1e-7) == "3.142 1.23e+04 1e-07");
  CHECK(Format("{}", std::numeric_limits<double>::infinity()) == "inf");
}

TEST_CASE("braces and widths from arguments work") {
  CHECK(Format("{{{}}}", 1) == "{1}");
  CHECK(Format("{:{}}|", 7, 3) == "  7|");
}

TEST_CASE("long texts are complete") {
  const std::string text(100000, 'x');
  CHECK(Format("<{}>", text).size() == 100002);
}

}  // namespace
}  // namespace hvl
