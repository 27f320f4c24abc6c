// Lists of processors as text and as masks.
#include "launcher/processors.h"

#include <catch2/catch.hpp>

namespace hvl::launcher {
namespace {

TEST_CASE("lists of processors are read as the system writes them") {
  CHECK(ParseProcessors("0-3,8\n") == Processors{0, 1, 2, 3, 8});
  CHECK(ParseProcessors("8,0-1,1") == Processors{0, 1, 8});
  CHECK(ParseProcessors("\n") == Processors{});
  CHECK(ParseProcessors("5") == Processors{5});
}

TEST_CASE("what is no list of processors is nothing") {
  for (const char* text : {"x", "1-", "-1", "3-2", "1,", ",1", "1 2", "0-99999999", "1--2"}) {
    INFO(text);
    CHECK(ParseProcessors(text) == std::nullopt);
  }
}

TEST_CASE("a list is written with ranges, and reads back") {
  CHECK(ProcessorText({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11");
  CHECK(ProcessorText({}).empty());
  CHECK(ParseProcessors(ProcessorText({0, 2, 3, 64})) == Processors{0, 2, 3, 64});
}

TEST_CASE("masks have a bit per processor, also beyond the first word") {
  CHECK(AffinityMask({0, 2}) == std::vector<unsigned long>{5});
  CHECK(AffinityMask({64}) == std::vector<unsigned long>{0, 1});
  CHECK(AffinityMask({}).empty());
}

TEST_CASE("this process may run somewhere") { CHECK_FALSE(AllowedProcessors().empty()); }

}  // namespace
}  // namespace hvl::launcher
