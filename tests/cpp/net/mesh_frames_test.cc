// The control links under load, at the limits, and with a peer that breaks the rules.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "csrc/net/bytes.h"
#include "csrc/net/frames.h"
#include "tests/support/impostor.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::net {
namespace {

using test::Frame;
using test::JoinRanks;
using test::PollForEvents;
using test::RawPeer;
using test::RecordingReceiver;
using test::RunRanks;

std::string Header(std::uint32_t payload_bytes, std::uint32_t kind) {
  ByteWriter out;
  out.Integer(payload_bytes);
  out.Integer(kind);
  return out.Take();
}

// Checks that numbered frames of varying size come complete and in order.
class Counting final : public MeshReceiver {
 public:
  static std::string FrameNumber(std::uint32_t number) {
    ByteWriter out;
    out.Integer(number);
    out.Raw(std::string(number * 7919 % 1500, static_cast<char>(number)));
    return out.Take();
  }
  void OnFrame(int, std::span<const std::byte> frame) override {
    const std::string expected = FrameNumber(count);
    in_order = in_order && frame.size() == expected.size() &&
               std::memcmp(frame.data(), expected.data(), expected.size()) == 0;
    ++count;
  }
  void OnPeerLost(int, const Status&) override { lost = true; }

  std::uint32_t count = 0;
  bool in_order = true;
  bool lost = false;
};

}  // namespace

TEST_CASE("frames of every size up to the limit arrive whole", "[frames]") {
  MeshOptions options;
  options.tcp_only = GENERATE(false, true);
  auto meshes = JoinRanks(2, options);
  REQUIRE(meshes.ok());
  const std::vector<std::size_t> sizes = {
      0, 1, 7, 8, 65'527, 65'528, 65'529, 1'000'000, kMaxFrameBytes, 0};
  std::thread sender([&] {
    RecordingReceiver receiver;
    for (const std::size_t size : sizes)
      (*meshes)[0]->Send(1, Frame(std::string(size, static_cast<char>(size))));
    // The reader's answer: everything has been taken.
    PollForEvents(*(*meshes)[0], receiver, 1);
  });
  RecordingReceiver receiver;
  const bool all = PollForEvents(*(*meshes)[1], receiver, sizes.size());
  (*meshes)[1]->Send(0, {});
  sender.join();
  REQUIRE(all);
  for (std::size_t i = 0; i < sizes.size(); ++i)
    CHECK((receiver.events[i].frame == std::string(sizes[i], static_cast<char>(sizes[i]))));
}

TEST_CASE("a hundred thousand frames both ways, written before anything is read", "[frames]") {
  constexpr std::uint32_t kFrames = 100'000;
  MeshOptions options;
  options.tcp_only = GENERATE(false, true);
  auto meshes = JoinRanks(2, options);
  REQUIRE(meshes.ok());
  const auto good = RunRanks(2, [&](int rank) {
    Mesh& mesh = *(*meshes)[static_cast<std::size_t>(rank)];
    for (std::uint32_t i = 0; i < kFrames; ++i)
      mesh.Send(1 - rank, Frame(Counting::FrameNumber(i)));
    Counting receiver;
    const TimePoint give_up = SteadyClock().Now() + test::kHangLimit;
    while (receiver.count < kFrames && SteadyClock().Now() < give_up)
      mesh.Poll(std::chrono::seconds(1), receiver);
    // Close flushes what the other side has not read yet, within its bound; so read on meanwhile.
    mesh.Send(1 - rank, Frame(Counting::FrameNumber(kFrames)));
    while (receiver.count <= kFrames && !receiver.lost && SteadyClock().Now() < give_up)
      mesh.Poll(std::chrono::seconds(1), receiver);
    mesh.Close();
    return receiver.in_order && receiver.count == kFrames + 1;
  });
  CHECK(good == std::vector<bool>{true, true});
}

TEST_CASE("a peer that does not read is given up at the limit, and wakes the sleeper", "[frames]") {
  MeshOptions options;
  options.max_queued_bytes = 1 << 20;
  auto meshes = JoinRanks(2, options);
  REQUIRE(meshes.ok());
  const std::string frame(1 << 16, 'x');
  for (int i = 0; i < 64; ++i) (*meshes)[0]->Send(1, Frame(frame));
  (*meshes)[0]->Sleep(Duration::max());  // returns at once, or the test hangs
  RecordingReceiver receiver;
  CHECK((*meshes)[0]->Poll(Duration::zero(), receiver));
  REQUIRE(receiver.events.size() == 1);
  CHECK(receiver.events[0].lost.code() == StatusCode::kResourceExhausted);
  CHECK(receiver.events[0].lost.culprit_rank() == 1);
  CHECK_THAT(receiver.events[0].lost.message(), Catch::Contains("1048576 bytes"));
  // The reader finds what was sent, then the end.
  RecordingReceiver other;
  while (other.events.empty() || other.events.back().lost.ok())
    (*meshes)[1]->Poll(test::kHangLimit, other);
  CHECK(other.events.size() >= 2);
  CHECK_THAT(other.events.back().lost.message(), Catch::Contains("closed its link"));
}

TEST_CASE("a stream that makes no sense ends the link, after the frames before it", "[frames]") {
  const std::string nonsense = GENERATE(Header(kMaxFrameBytes + 1, 0), Header(0xFFFFFFFF, 0),
                                        Header(4, 77), Header(0, 0xFFFFFFFF), Header(0, 2));
  MemoryStore store;
  const Secret secret = Secret::Random();
  MeshOptions options;
  options.size = 2;
  options.job_id = "job";
  options.secret = secret;
  auto mesh = std::async(std::launch::async, [&] { return Mesh::Join(store, options, Logger()); });
  RawPeer peer = test::JoinAsRankOne(store, secret, "job");
  auto joined = mesh.get();
  REQUIRE(joined.ok());
  REQUIRE(peer.Send(Header(5, 0) + "hello" + nonsense + std::string(100, '\xFF')));
  RecordingReceiver receiver;
  REQUIRE(PollForEvents(**joined, receiver, 2));
  CHECK(receiver.events[0].frame == "hello");
  CHECK(receiver.events[1].lost.code() == StatusCode::kInternal);
  CHECK(receiver.events[1].lost.culprit_rank() == 1);
  CHECK_THAT(receiver.events[1].lost.message(), Catch::Contains("corrupt"));
}

TEST_CASE("a frame may come byte by byte, and an end inside it is said", "[frames]") {
  MemoryStore store;
  const Secret secret = Secret::Random();
  MeshOptions options;
  options.size = 2;
  options.job_id = "job";
  options.secret = secret;
  auto mesh = std::async(std::launch::async, [&] { return Mesh::Join(store, options, Logger()); });
  RawPeer peer = test::JoinAsRankOne(store, secret, "job");
  auto joined = mesh.get();
  REQUIRE(joined.ok());
  RecordingReceiver receiver;
  for (const char byte : Header(5, 0) + "hello" + Header(3, 0) + "ab") {
    REQUIRE(peer.Send({&byte, 1}));
    (*joined)->Poll(test::kHangLimit, receiver);
  }
  peer.Close();
  REQUIRE(PollForEvents(**joined, receiver, 2));
  CHECK(receiver.events[0].frame == "hello");
  CHECK_THAT(receiver.events[1].lost.message(), Catch::Contains("in the middle of a message"));
}

TEST_CASE("one thread may sleep while another one polls and sends", "[frames]") {
  auto meshes = JoinRanks(2);
  REQUIRE(meshes.ok());
  Mesh& mesh = *(*meshes)[0];
  std::atomic<bool> stop = false;
  std::thread sleeper([&] {
    while (!stop.load()) mesh.Sleep(Duration::max());
  });
  std::thread peer([&] {
    Counting receiver;
    for (std::uint32_t i = 0; i < 2000; ++i) {
      (*meshes)[1]->Send(0, Frame(Counting::FrameNumber(i)));
      while (receiver.count <= i) (*meshes)[1]->Poll(test::kHangLimit, receiver);
    }
  });
  Counting receiver;
  for (std::uint32_t i = 0; i < 2000; ++i) {
    while (receiver.count <= i) mesh.Poll(Duration::zero(), receiver);
    mesh.Send(1, Frame(Counting::FrameNumber(i)));
  }
  peer.join();
  stop.store(true);
  mesh.Wake();
  sleeper.join();
  CHECK(receiver.in_order);
}

}  // namespace hvl::net
