// The steady clock runs; the manual clock runs only when told.
#include "csrc/base/clock.h"

#include <catch2/catch.hpp>

namespace hvl {
namespace {

TEST_CASE("the steady clock never goes back and does go on") {
  const TimePoint start = SteadyClock().Now();
  TimePoint last = start;
  while (last == start) {
    const TimePoint now = SteadyClock().Now();
    REQUIRE(now >= last);
    last = now;
  }
  CHECK(last > start);
}

TEST_CASE("there is one steady clock") { CHECK(&SteadyClock() == &SteadyClock()); }

TEST_CASE("a manual clock stands still until it is advanced") {
  ManualClock clock;
  const TimePoint start = clock.Now();
  CHECK(clock.Now() == start);
  clock.Advance(std::chrono::milliseconds(250));
  CHECK(clock.Now() - start == std::chrono::milliseconds(250));
  clock.Advance(std::chrono::nanoseconds(1));
  CHECK(clock.Now() - start == std::chrono::nanoseconds(250'000'001));
}

}  // namespace
}  // namespace hvl
