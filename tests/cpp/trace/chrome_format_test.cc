// ChromeFormatter: rows, phases, times, escaping, unbalanced and missing events.
#include "csrc/trace/chrome_format.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "csrc/base/str.h"

namespace hvl::trace {
namespace {

using nlohmann::json;

constexpr TimePoint kOrigin{std::chrono::seconds(1000)};
TimePoint At(int us) { return kOrigin + std::chrono::microseconds(us); }

/// A formatter with its output, parsed.
struct Formatted {
  explicit Formatted(std::size_t max_tracks = 10)
      : formatter(kOrigin, max_tracks,
                  [this](std::string_view element) { events.push_back(json::parse(element)); }) {}
  Formatted(const Formatted&) = delete;
  Formatted& operator=(const Formatted&) = delete;

  json events = json::array();
  ChromeFormatter formatter;
};

TEST_CASE("process 0 is the rank, with the wall-clock time of the origin") {
  const json metadata = json::parse(Format("[{}]", ProcessZero(3, 1234567)));
  REQUIRE(metadata.size() == 2);
  CHECK(metadata[0] ==
        json({{"name", "process_name"},
              {"ph", "M"},
              {"pid", 0},
              {"args", {{"name", "rank 3"}, {"start_time_since_epoch_in_micros", 1234567}}}}));
  CHECK(metadata[1]["name"] == "process_sort_index");
}

TEST_CASE("a tensor is named and placed once, and its activities nest") {
  Formatted out;
  CHECK(out.formatter.Add({EventKind::kBegin, At(10), "allreduce.w", "ALLREDUCE"}));
  CHECK(out.formatter.Add({EventKind::kBegin, At(11), "allreduce.w", "QUEUE"}));
  CHECK(out.formatter.Add({EventKind::kEnd, At(12), "allreduce.w", ""}));
  CHECK(out.formatter.Add({EventKind::kEnd, At(15), "allreduce.w", ""}));
  const json& events = out.events;
  REQUIRE(events.size() == 6);
  CHECK(events[0] == json({{"name", "process_name"},
                           {"ph", "M"},
                           {"pid", 1},
                           {"args", {{"name", "allreduce.w"}}}}));
  CHECK(events[1] == json({{"name", "process_sort_index"},
                           {"ph", "M"},
                           {"pid", 1},
                           {"args", {{"sort_index", 1}}}}));
  CHECK(events[2] ==
        json({{"ph", "B"}, {"name", "ALLREDUCE"}, {"ts", 10.0}, {"pid", 1}, {"tid", 0}}));
  CHECK(events[3] == json({{"ph", "B"}, {"name", "QUEUE"}, {"ts", 11.0}, {"pid", 1}, {"tid", 0}}));
  CHECK(events[4] == json({{"ph", "E"}, {"ts", 12.0}, {"pid", 1}, {"tid", 0}}));
  CHECK(events[5] == json({{"ph", "E"}, {"ts", 15.0}, {"pid", 1}, {"tid", 0}}));
}

TEST_CASE("each tensor has its own row") {
  Formatted out;
  out.formatter.Add({EventKind::kBegin, At(1), "a", "X"});
  out.formatter.Add({EventKind::kBegin, At(1), "b", "X"});
  out.formatter.Add({EventKind::kBegin, At(2), "a", "X"});
  std::vector<int> pids;
  for (const json& event : out.events) {
    if (event["ph"] == "B") pids.push_back(event["pid"].get<int>());
  }
  CHECK(pids == std::vector<int>{1, 2, 1});
}

TEST_CASE("a ready rank is an event of no duration, a global mark belongs to the rank") {
  Formatted out;
  out.formatter.Add({EventKind::kInstant, At(7), "", "CYCLE_START"});
  out.formatter.Add({EventKind::kInstant, At(8), "t", "3"});
  const json& events = out.events;
  CHECK(
      events[0] ==
      json(
          {{"ph", "i"}, {"name", "CYCLE_START"}, {"ts", 7.0}, {"pid", 0}, {"tid", 0}, {"s", "g"}}));
  CHECK(events.back() ==
        json({{"ph", "X"}, {"name", "3"}, {"ts", 8.0}, {"dur", 0}, {"pid", 1}, {"tid", 0}}));
}

TEST_CASE("times are microseconds to the nanosecond") {
  Formatted out;
  out.formatter.Add({EventKind::kInstant, kOrigin + std::chrono::nanoseconds(1234567), "", "m"});
  CHECK(out.events.back()["ts"] == 1234.567);
}

TEST_CASE("names with quotes, controls and broken UTF-8 stay readable JSON") {
  for (const std::string& name :
       {std::string("a\"b\\c"), std::string("tab\there\nnew\x01"), std::string("h\u00e4t/\u4e2d"),
        std::string("nul\0inside", 10), std::string("]}, {")}) {
    Formatted out;
    out.formatter.Add({EventKind::kBegin, At(1), name, name});
    const json& events = out.events;
    CHECK(events[0]["args"]["name"] == name);
    CHECK(events.back()["name"] == name);
  }
  CHECK(json::parse(JsonString("x\xff\xc3")) == "x\uFFFD\uFFFD");
}

TEST_CASE("a name too long to show is cut, and its row stays its own") {
  const std::string common(10 * kMaxNameBytes, '\x01');
  Formatted out;
  out.formatter.Add({EventKind::kBegin, At(1), common + "a", common});
  out.formatter.Add({EventKind::kBegin, At(1), common + "b", common});
  CHECK(out.events[0]["args"]["name"] == std::string(kMaxNameBytes, '\x01') + "...");
  CHECK(out.events[2]["pid"] == 1);
  CHECK(out.events.back()["pid"] == 2);
  CHECK(JsonString(common).size() < 4000);
}

TEST_CASE("an end without a beginning is left out") {
  Formatted out;
  CHECK(out.formatter.Add({EventKind::kEnd, At(1), "t", ""}));
  for (const json& event : out.events) {
    CHECK(event["ph"] == "M");
  }
}

TEST_CASE("where events are missing, what is open is ended and the number stands") {
  Formatted out;
  out.formatter.Add({EventKind::kBegin, At(1), "t", "ALLREDUCE"});
  out.formatter.Add({EventKind::kBegin, At(5), "t", "QUEUE"});
  out.formatter.AddDropped(42);
  const json& events = out.events;
  const std::size_t count = events.size();
  REQUIRE(count >= 3);
  CHECK(events[count - 3] == json({{"ph", "E"}, {"ts", 5.0}, {"pid", 1}, {"tid", 0}}));
  CHECK(events[count - 2] == json({{"ph", "E"}, {"ts", 5.0}, {"pid", 1}, {"tid", 0}}));
  CHECK(events[count - 1]["name"] == "DROPPED_EVENTS");
  CHECK(events[count - 1]["args"]["count"] == 42);

  CHECK(out.formatter.Add({EventKind::kEnd, At(9), "t", ""}));
  CHECK(events.size() == count);
}

TEST_CASE("beyond the limit of rows, new names are refused and old ones go on") {
  Formatted out(2);
  CHECK(out.formatter.Add({EventKind::kBegin, At(1), "a", "X"}));
  CHECK(out.formatter.Add({EventKind::kBegin, At(1), "b", "X"}));
  const json before = out.events;
  CHECK_FALSE(out.formatter.Add({EventKind::kBegin, At(1), "c", "X"}));
  CHECK(out.events == before);
  CHECK(out.formatter.Add({EventKind::kEnd, At(2), "a", ""}));
}

}  // namespace
}  // namespace hvl::trace
