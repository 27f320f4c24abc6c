// What the head and an agent say to each other, as bytes: all of it comes back, and nothing else is
// taken for it.
#include "launcher/agent_frames.h"

#include <catch2/catch.hpp>

#include <csignal>
#include <random>
#include <string>
#include <vector>

#include "csrc/net/bytes.h"

namespace hvl::launcher {
namespace {

std::vector<HeadFrame> HeadFrames() {
  StartOrder start;
  start.folder = "/home/me/with space";
  start.command = {"python", "train.py", "", "a b\n\"'$x", "\xff\xfe"};
  start.environment = {"A=1", "B=\x80\n", "EMPTY=", "no equals sign"};
  start.secret.fill(0x5A);
  start.job_id = "0df358c24bfa";
  start.ranks = {{.rank = 4, .settings = {}, .processors = {0, 2, 4}, .shown = false},
                 {.rank = 5, .settings = {"HVL_RANK=5"}, .processors = {}, .shown = true}};
  ExamineOrder examine;
  examine.folder = "/";
  examine.rank_count = 8;
  return {start, examine, SignalOrder{SIGTERM, true}, KillOrder(), ReadingOrder{true, false},
          Beat()};
}

std::vector<AgentFrame> AgentFrames() {
  Hello hello;
  hello.version = "1.2.3";
  hello.host_name = "node2";
  hello.pid = 4711;
  hello.nanoseconds_since_1970 = -5;
  hello.addresses = {"10.0.0.2", "2001:db8::2"};
  hello.ssh_connection = "10.0.0.1 50000 10.0.0.2 22";
  hello.free_port = 40000;
  hello.cores = {{.node = 0, .processors = {0, 64}}, {.node = 1, .processors = {1}}};
  hello.quota_thousandths = 2500;
  RankExit exit;
  exit.rank = 3;
  exit.pid = 99;
  exit.status.signal = SIGKILL;
  exit.peak_memory_kib = 1L << 40;
  exit.memory_hint = "very likely";
  exit.report.phase = RankPhase::kPeerLost;
  exit.report.peer = 2;
  exit.report.text = "rank 2 was killed";
  exit.report.phase_age_ns = 17;
  exit.report.beat_age_ns = 200'000'000;
  exit.report.named_peer = true;
  exit.report.in_flight = 3;
  exit.report.is_running = true;
  exit.report.started = {.kind = "allreduce",
                         .name = "w",
                         .process_set = 1,
                         .operations = 2,
                         .bytes = 1ULL << 40,
                         .sequence = 7,
                         .plan = 1,
                         .step = 2,
                         .bucket = 3,
                         .buckets = 4,
                         .age_ns = -1};
  return {hello,
          Started{{10, 11}, 0, ""},
          Started{{}, 127, "command not found"},
          Examined{{{Finding::Level::kWarn, "clock", "late", "set it"}}},
          Wrote{1, true, std::string_view("a\0b\n", 4)},
          Wrote{1, false, ""},
          Ended{exit},
          LeftoverGone(),
          LeftoverFound{{7, "sleep", 'S'}},
          NobodyLeft(),
          Finished{{{8, "nfs", 'D'}}},
          Signalled{SIGINT},
          Beat()};
}

std::string Stream() {
  std::string bytes = Greeting();
  for (const AgentFrame& frame : AgentFrames()) Encode(frame, &bytes);
  return bytes;
}

TEST_CASE("every frame comes back as it was, however the stream is cut") {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, Stream().size()}) {
    FrameReader reader;
    const std::string bytes = Stream();
    std::size_t read = 0;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      reader.Feed(bytes.substr(at, piece));
      const Result<bool> greeted = reader.Greeted();
      REQUIRE(greeted.ok());
      if (!*greeted) continue;
      for (;;) {
        const auto frame = reader.NextOfAgent();
        REQUIRE(frame.ok());
        if (!*frame) break;
        CHECK(**frame == AgentFrames().at(read));
        ++read;
      }
    }
    CHECK(read == AgentFrames().size());
  }
  FrameReader reader;
  std::string bytes = Greeting();
  for (const HeadFrame& frame : HeadFrames()) Encode(frame, &bytes);
  reader.Feed(bytes);
  REQUIRE(reader.Greeted().ok());
  for (const HeadFrame& wanted : HeadFrames()) {
    const auto frame = reader.NextOfHead();
    REQUIRE(frame.ok());
    REQUIRE(frame->has_value());
    CHECK(**frame == wanted);
  }
}

TEST_CASE("what a log-in script prints is skipped, and something else is quoted") {
  FrameReader reader;
  reader.Feed("Welcome to node2!\n");
  CHECK_FALSE(*reader.Greeted());
  reader.Feed(Stream());
  REQUIRE(*reader.Greeted());
  CHECK(reader.noise() == "Welcome to node2!\n");
  CHECK(std::get<Hello>(**reader.NextOfAgent()).host_name == "node2");

  FrameReader other;
  other.Feed("login: " + std::string(kMaxGreetingNoise, '.'));
  const Result<bool> greeted = other.Greeted();
  REQUIRE_FALSE(greeted.ok());
  CHECK_THAT(greeted.status().message(),
             Catch::StartsWith("something else than hvlrun answers: 'login: ..."));
}

TEST_CASE("another version of the protocol is refused before any frame is read") {
  std::string bytes = Greeting();
  ++bytes.at(bytes.size() - 2);
  FrameReader reader;
  reader.Feed(bytes);
  const Result<bool> greeted = reader.Greeted();
  REQUIRE_FALSE(greeted.ok());
  CHECK(greeted.status().message() ==
        "its hvlrun speaks version 3 of the agents' protocol and this one 2; install the same "
        "version of horovodlite on all hosts");
}

TEST_CASE("bytes that are no frame are refused") {
  const auto refused = [](const std::string& bytes) {
    FrameReader reader;
    reader.Feed(Greeting() + bytes);
    return reader.Greeted().ok() && !reader.NextOfHead().ok();
  };
  const auto frame = [](std::string_view body) {
    net::ByteWriter out;
    out.Text(body);
    return out.Take();
  };
  using namespace std::string_view_literals;
  CHECK(refused(frame("")));                                // no kind
  CHECK(refused(frame("\x7f")));                            // unknown kind
  CHECK(refused(frame("\x03!")));                           // KillOrder has no field
  CHECK(refused(frame("\x04\x01")));                        // ReadingOrder has two
  CHECK(refused(frame("\x04\x01\x02")));                    // a bool is 0 or 1
  CHECK(refused(frame("\x00\xff\xff\xff\xff"sv)));          // a text longer than the frame
  CHECK(refused(frame("\x01\0\0\0\0\xff\xff\xff\x7f"sv)));  // so many words cannot follow
  CHECK(refused("\xff\xff\xff\xff"));                       // 4 GiB
  CHECK_FALSE(refused(frame("\x03")));
}

TEST_CASE("a frame that is cut anywhere is not taken for a whole one") {
  for (const HeadFrame& whole : HeadFrames()) {
    std::string bytes;
    Encode(whole, &bytes);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      FrameReader reader;
      reader.Feed(Greeting() + bytes.substr(0, length));
      REQUIRE(*reader.Greeted());
      const auto frame = reader.NextOfHead();
      REQUIRE(frame.ok());
      CHECK_FALSE(frame->has_value());
    }
  }
}

}  // namespace
}  // namespace hvl::launcher
