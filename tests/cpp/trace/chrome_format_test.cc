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

/// What a file would hold after these elements.
json Parse(const std::string& elements) { return json::parse(Format("[0{}]", elements)); }

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
  ChromeFormatter formatter(kOrigin, 10);
  std::string out;
  CHECK(formatter.Append({EventKind::kBegin, At(10), "allreduce.w", "ALLREDUCE"}, &out));
  CHECK(formatter.Append({EventKind::kBegin, At(11), "allreduce.w", "QUEUE"}, &out));
  CHECK(formatter.Append({EventKind::kEnd, At(12), "allreduce.w", ""}, &out));
  CHECK(formatter.Append({EventKind::kEnd, At(15), "allreduce.w", ""}, &out));
  const json events = Parse(out);
  REQUIRE(events.size() == 7);
  CHECK(events[1] == json({{"name", "process_name"},
                           {"ph", "M"},
                           {"pid", 1},
                           {"args", {{"name", "allreduce.w"}}}}));
  CHECK(events[2] == json({{"name", "process_sort_index"},
                           {"ph", "M"},
                           {"pid", 1},
                           {"args", {{"sort_index", 1}}}}));
  CHECK(events[3] ==
        json({{"ph", "B"}, {"name", "ALLREDUCE"}, {"ts", 10.0}, {"pid", 1}, {"tid", 0}}));
  CHECK(events[4] == json({{"ph", "B"}, {"name", "QUEUE"}, {"ts", 11.0}, {"pid", 1}, {"tid", 0}}));
  CHECK(events[5] == json({{"ph", "E"}, {"ts", 12.0}, {"pid", 1}, {"tid", 0}}));
  CHECK(events[6] == json({{"ph", "E"}, {"ts", 15.0}, {"pid", 1}, {"tid", 0}}));
}

TEST_CASE("each tensor has its own row") {
  ChromeFormatter formatter(kOrigin, 10);
  std::string out;
  formatter.Append({EventKind::kBegin, At(1), "a", "X"}, &out);
  formatter.Append({EventKind::kBegin, At(1), "b", "X"}, &out);
  formatter.Append({EventKind::kBegin, At(2), "a", "X"}, &out);
  std::vector<int> pids;
  for (const json& event : Parse(out)) {
    if (event.is_object() && event["ph"] == "B") pids.push_back(event["pid"].get<int>());
  }
  CHECK(pids == std::vector<int>{1, 2, 1});
}

TEST_CASE("a ready rank is an event of no duration, a global mark belongs to the rank") {
  ChromeFormatter formatter(kOrigin, 10);
  std::string out;
  formatter.Append({EventKind::kInstant, At(7), "", "CYCLE_START"}, &out);
  formatter.Append({EventKind::kInstant, At(8), "t", "3"}, &out);
  const json events = Parse(out);
  CHECK(
      events[1] ==
      json(
          {{"ph", "i"}, {"name", "CYCLE_START"}, {"ts", 7.0}, {"pid", 0}, {"tid", 0}, {"s", "g"}}));
  CHECK(events.back() ==
        json({{"ph", "X"}, {"name", "3"}, {"ts", 8.0}, {"dur", 0}, {"pid", 1}, {"tid", 0}}));
}

TEST_CASE("times are microseconds to the nanosecond") {
  ChromeFormatter formatter(kOrigin, 10);
  std::string out;
  formatter.Append({EventKind::kInstant, kOrigin + std::chrono::nanoseconds(1234567), "", "m"},
                   &out);
  CHECK(Parse(out).back()["ts"] == 1234.567);
}

TEST_CASE("names with quotes, controls and broken UTF-8 stay readable JSON") {
  for (const std::string& name :
       {std::string("a\"b\\c"), std::string("tab\there\nnew\x01"), std::string("h\u00e4t/\u4e2d"),
        std::string("nul\0inside", 10), std::string("]}, {")}) {
    ChromeFormatter formatter(kOrigin, 10);
    std::string out;
    formatter.Append({EventKind::kBegin, At(1), name, name}, &out);
    const json events = Parse(out);
    CHECK(events[1]["args"]["name"] == name);
    CHECK(events.back()["name"] == name);
  }
  CHECK(json::parse(JsonString("x\xff\xc3")) == "x\uFFFD\uFFFD");
}

TEST_CASE("an end without a beginning is left out") {
  ChromeFormatter formatter(kOrigin, 10);
  std::string out;
  CHECK(formatter.Append({EventKind::kEnd, At(1), "t", ""}, &out));
  for (const json& event : Parse(out)) {
    if (event.is_object()) CHECK(event["ph"] == "M");
  }
}

TEST_CASE("where events are missing, what is open is ended and the number stands") {
  ChromeFormatter formatter(kOrigin, 10);
  std::string out;
  formatter.Append({EventKind::kBegin, At(1), "t", "ALLREDUCE"}, &out);
  formatter.Append({EventKind::kBegin, At(5), "t", "QUEUE"}, &out);
  formatter.AppendDropped(42, &out);
  const json events = Parse(out);
  const std::size_t count = events.size();
  REQUIRE(count >= 3);
  CHECK(events[count - 3] == json({{"ph", "E"}, {"ts", 5.0}, {"pid", 1}, {"tid", 0}}));
  CHECK(events[count - 2] == json({{"ph", "E"}, {"ts", 5.0}, {"pid", 1}, {"tid", 0}}));
  CHECK(events[count - 1]["name"] == "DROPPED_EVENTS");
  CHECK(events[count - 1]["args"]["count"] == 42);

  std::string later;
  formatter.Append({EventKind::kEnd, At(9), "t", ""}, &later);
  CHECK(later.empty());
}

TEST_CASE("beyond the limit of rows, new names are refused and old ones go on") {
  ChromeFormatter formatter(kOrigin, 2);
  std::string out;
  CHECK(formatter.Append({EventKind::kBegin, At(1), "a", "X"}, &out));
  CHECK(formatter.Append({EventKind::kBegin, At(1), "b", "X"}, &out));
  const std::string before = out;
  CHECK_FALSE(formatter.Append({EventKind::kBegin, At(1), "c", "X"}, &out));
  CHECK(out == before);
  CHECK(formatter.Append({EventKind::kEnd, At(2), "a", ""}, &out));
}

}  // namespace
}  // namespace hvl::trace
