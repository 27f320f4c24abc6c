#include "launcher/oom_watch.h"

#include <catch2/catch.hpp>

namespace hvl::launcher {
namespace {

TEST_CASE("a counter is found by its whole name") {
  const char* text = "oom 7\noom_kill_disable 0\nunder_oom 1\noom_kill 12\noom_group_kill 9\n";
  CHECK(Counter(text, "oom_kill") == 12);
  CHECK(Counter(text, "oom") == 7);
  CHECK_FALSE(Counter(text, "kill").has_value());
}

TEST_CASE("no file, a cut file or a word instead of a number is no counter") {
  CHECK_FALSE(Counter("", "oom_kill").has_value());
  CHECK_FALSE(Counter("oom_kill", "oom_kill").has_value());
  CHECK_FALSE(Counter("oom_kill x\n", "oom_kill").has_value());
  CHECK(Counter("oom_kill 3", "oom_kill") == 3);
}

TEST_CASE("nothing is hinted at while nothing was killed") {
  const OomWatch watch;
  CHECK(watch.Hint().empty());
}

}  // namespace
}  // namespace hvl::launcher
