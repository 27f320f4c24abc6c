// The decorator that other rooms' tests break links with.
#include "tests/support/fault_mesh.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "csrc/base/str.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::test {
namespace {

std::vector<std::string> FramesOf(const RecordingReceiver& receiver) {
  std::vector<std::string> frames;
  for (const auto& event : receiver.events) frames.push_back(event.frame);
  return frames;
}

}  // namespace

TEST_CASE("scripted frames vanish, the others keep their order", "[fault]") {
  auto meshes = JoinRanks(2).value();
  FaultScript script;
  script.drop[1] = {2, 4};
  FaultMesh faulty(std::move(meshes[0]), script);
  for (int i = 1; i <= 5; ++i) faulty.Send(1, Frame(Format("{}", i)));
  RecordingReceiver receiver;
  REQUIRE(PollForEvents(*meshes[1], receiver, 3));
  CHECK(FramesOf(receiver) == std::vector<std::string>{"1", "3", "5"});
}

TEST_CASE("delayed frames arrive late, in order, and the same in every run", "[fault]") {
  std::vector<std::vector<std::size_t>> arrivals;
  for (int run = 0; run < 2; ++run) {
    auto meshes = JoinRanks(2).value();
    FaultScript script;
    script.delay_polls = 5;
    script.seed = 7;
    FaultMesh faulty(std::move(meshes[0]), script);
    RecordingReceiver own;
    RecordingReceiver other;
    std::vector<std::size_t> after_poll;
    for (int i = 0; i < 20; ++i) faulty.Send(1, Frame(Format("{}", i)));
    faulty.Sleep(Duration::max());  // returns: there is something to do
    while (other.events.size() < 20) {
      faulty.Poll(Duration::zero(), own);
      while (meshes[1]->Poll(Duration::zero(), other)) {
      }
      after_poll.push_back(other.events.size());
    }
    for (std::size_t i = 0; i < 20; ++i) CHECK(other.events[i].frame == Format("{}", i));
    CHECK(after_poll.size() > 1);
    arrivals.push_back(after_poll);
  }
  CHECK(arrivals[0] == arrivals[1]);
}

TEST_CASE("a cut link is lost once and then silent", "[fault]") {
  auto meshes = JoinRanks(2).value();
  FaultScript script;
  script.cut_after[1] = 2;
  FaultMesh faulty(std::move(meshes[0]), script);
  for (int i = 1; i <= 4; ++i) faulty.Send(1, Frame(Format("{}", i)));
  meshes[1]->Send(0, Frame("into the void"));
  RecordingReceiver other;
  REQUIRE(PollForEvents(*meshes[1], other, 2));
  CHECK(FramesOf(other) == std::vector<std::string>{"1", "2"});
  RecordingReceiver own;
  CHECK(faulty.Poll(Duration::max(), own));
  while (faulty.Poll(Duration::zero(), own)) {
  }
  REQUIRE(own.events.size() == 1);
  CHECK(own.events[0].lost.culprit_rank() == 1);
}

}  // namespace hvl::test
