// EventBuffer: order, contents, the limit and what happens beyond it.
#include "csrc/trace/event_queue.h"

#include <catch2/catch.hpp>
#include <string>

namespace hvl::trace {
namespace {

constexpr TimePoint At(int ns) { return TimePoint(std::chrono::nanoseconds(ns)); }

TEST_CASE("events come out as they went in") {
  EventBuffer buffer(4096);
  CHECK(buffer.empty());
  buffer.Push({EventKind::kBegin, At(1), "layer.1", "QUEUE"});
  buffer.Push({EventKind::kInstant, At(2), "", "CYCLE_START"});
  buffer.Push({EventKind::kEnd, At(3), std::string(1000, 'x'), ""});
  CHECK_FALSE(buffer.empty());

  int index = 0;
  buffer.ForEach([&index](const Event& event) {
    switch (index++) {
      case 0:
        CHECK(event.kind == EventKind::kBegin);
        CHECK(event.at == At(1));
        CHECK(event.tensor == "layer.1");
        CHECK(event.what == "QUEUE");
        break;
      case 1:
        CHECK(event.kind == EventKind::kInstant);
        CHECK(event.tensor.empty());
        CHECK(event.what == "CYCLE_START");
        break;
      default:
        CHECK(event.kind == EventKind::kEnd);
        CHECK(event.tensor.size() == 1000);
        CHECK(event.what.empty());
    }
  });
  CHECK(index == 3);
}

TEST_CASE("what does not fit is dropped, counted, and leaves no holes") {
  EventBuffer buffer(100);
  const std::string big(90, 'x');
  buffer.Push({EventKind::kEnd, At(1), "a", ""});
  buffer.Push({EventKind::kEnd, At(2), big, ""});
  buffer.Push({EventKind::kEnd, At(3), "b", ""});  // would fit, but comes after a dropped one
  CHECK(buffer.dropped() == 2);
  CHECK(buffer.bytes() <= 100);
  int seen = 0;
  buffer.ForEach([&seen](const Event& event) {
    CHECK(event.tensor == "a");
    ++seen;
  });
  CHECK(seen == 1);

  buffer.Clear();
  CHECK(buffer.empty());
  CHECK(buffer.dropped() == 0);
  buffer.Push({EventKind::kEnd, At(3), "b", ""});
  CHECK(buffer.dropped() == 0);
  CHECK_FALSE(buffer.empty());
}

TEST_CASE("a buffer with nothing but drops is not empty: somebody has to report them") {
  EventBuffer buffer(8);
  buffer.Push({EventKind::kEnd, At(1), "a", ""});
  CHECK(buffer.bytes() == 0);
  CHECK_FALSE(buffer.empty());
}

}  // namespace
}  // namespace hvl::trace
