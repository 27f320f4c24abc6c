// Leaders that leave: the wave that tells when nobody needs them any more, in all orders of
// finishing and arriving, and meshes whose leaders leave after their last words.
#include "csrc/net/leaving.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "csrc/net/host_tree.h"
#include "tests/support/log_capture.h"
#include "tests/support/polled_world.h"

namespace hvl::net {
namespace {

using namespace std::chrono_literals;
using Random = std::mt19937_64;
using test::Losses;
using test::LostRanks;
using test::PolledWorld;

int Below(Random& random, int end) {
  return static_cast<int>(random() % static_cast<unsigned>(end));
}

// ---- the wave alone

// All ranks' Leaving, and what they say on its way.
class Wave {
 public:
  Wave(const std::vector<int>& hosts, int radix) : size_(static_cast<int>(hosts.size())) {
    for (int rank = 0; rank < size_; ++rank) {
      trees_.emplace_back(hosts, rank, radix);
      std::vector<int> branches;
      for (int peer = 0; peer < size_; ++peer)
        if (peer != rank && trees_.back().is_branch(peer)) branches.push_back(peer);
      ranks_.emplace_back(branches);
    }
  }

  void Finish(int rank) {
    REQUIRE(At(rank).Finish());
    finished_.insert(rank);
    Tell(rank);
  }
  void Die(int rank) {
    dead_.insert(rank);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank || !Tree(peer).is_branch(rank)) continue;
      At(peer).Lose(rank);
      Tell(peer);
    }
  }
  bool on_its_way() const { return !sent_.empty(); }
  void DeliverAny(Random& random) {
    const auto index = static_cast<std::size_t>(Below(random, static_cast<int>(sent_.size())));
    const auto [from, to] = sent_[index];
    sent_.erase(sent_.begin() + static_cast<std::ptrdiff_t>(index));
    if (dead_.contains(from) || dead_.contains(to)) return;
    REQUIRE(At(to).Hear(from));
    Tell(to);
  }
  int size() const { return size_; }
  bool over(int rank) const { return ranks_[static_cast<std::size_t>(rank)].over(); }
  std::size_t told() const { return told_; }

 private:
  Leaving& At(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const HostTree& Tree(int rank) const { return trees_[static_cast<std::size_t>(rank)]; }

  void Tell(int rank) {
    if (dead_.contains(rank)) return;
    for (const int peer : At(rank).TakeDue()) {
      ++told_;
      sent_.emplace_back(rank, peer);
      if (!dead_.empty()) continue;  // whom a death cuts off need not have finished
      CHECK(std::ranges::includes(finished_, SideOf(rank, peer)));
    }
  }

  // The ranks that remain with `rank` when its branch to `cut` goes.
  std::set<int> SideOf(int rank, int cut) const {
    std::set<int> side = {rank};
    std::vector<int> next = {rank};
    while (!next.empty()) {
      const int at = next.back();
      next.pop_back();
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == at || peer == cut || !Tree(at).is_branch(peer)) continue;
        if (side.insert(peer).second) next.push_back(peer);
      }
    }
    return side;
  }

  const int size_;
  std::vector<HostTree> trees_;
  std::vector<Leaving> ranks_;
  std::vector<std::pair<int, int>> sent_;  // from, to
  std::set<int> finished_, dead_;
  std::size_t told_ = 0;
};

std::vector<int> RandomHosts(Random& random) {
  std::vector<int> hosts;
  const int count = 2 + Below(random, 9);
  for (int host = 0; host < count; ++host) {
    for (int ranks = 1 + Below(random, 3); ranks > 0; --ranks) hosts.push_back(host);
  }
  return hosts;
}

Wave RandomWave(Random& random) {
  const std::vector<int> hosts = RandomHosts(random);
  const int radix = 1 + Below(random, 3);
  return {hosts, radix};
}

/// All ranks `end` at some time, while what they say is on its way.
void EndInAnyOrder(Wave& wave, Random& random, const std::function<void(int)>& end) {
  std::vector<int> order(static_cast<std::size_t>(wave.size()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  while (!order.empty() || wave.on_its_way()) {
    if (!wave.on_its_way() || (!order.empty() && Below(random, 2) == 0)) {
      end(order.back());
      order.pop_back();
    } else {
      wave.DeliverAny(random);
    }
  }
}

}  // namespace

TEST_CASE("no more is said over a link when all on this side have finished, and once each way") {
  const auto seed = GENERATE(range(0, 300));
  CAPTURE(seed);
  Random random(static_cast<std::uint64_t>(seed));
  Wave wave = RandomWave(random);
  EndInAnyOrder(wave, random, [&wave](int rank) { wave.Finish(rank); });
  for (int rank = 0; rank < wave.size(); ++rank) CHECK(wave.over(rank));
  CHECK(wave.told() == 2 * static_cast<std::size_t>(wave.size() - 1));  // a tree has so many links
}

TEST_CASE("who dies holds nobody up") {
  const auto seed = GENERATE(range(0, 300));
  CAPTURE(seed);
  Random random(static_cast<std::uint64_t>(seed));
  Wave wave = RandomWave(random);
  const int victim = Below(random, wave.size());
  EndInAnyOrder(wave, random,
                [&](int rank) { rank == victim ? wave.Die(victim) : wave.Finish(rank); });
  for (int rank = 0; rank < wave.size(); ++rank)
    if (rank != victim) CHECK(wave.over(rank));
}

TEST_CASE("no more is heard once, and from branches only") {
  Leaving leaving(std::vector<int>{3, 5});
  CHECK(leaving.Hear(3));
  CHECK_FALSE(leaving.Hear(3));
  CHECK_FALSE(leaving.Hear(4));
  CHECK(leaving.TakeDue().empty());  // this rank has not finished
  CHECK(leaving.Finish());
  CHECK_FALSE(leaving.Finish());
  CHECK(leaving.TakeDue() == std::vector<int>{5});
  CHECK_FALSE(leaving.over());
  CHECK(leaving.Missing() == std::vector<int>{5});
  CHECK(leaving.Hear(5));
  CHECK(leaving.TakeDue() == std::vector<int>{3});
  CHECK(leaving.over());
}

// ---- meshes

namespace {

// Three levels of hosts where the radix is 2: host 1 is above hosts 3 and 4, host 2 above 5 and 6.
const std::vector<int> kRanksPerHost = {2, 2, 1, 2, 1, 1, 1};
constexpr int kSize = 10;

MeshOptions DeepOptions(Duration silence_limit = 2s) {
  MeshOptions options;
  options.job_id = "job";
  options.radix = 2;
  options.silence_limit = silence_limit;
  return options;
}

// As the planners do: rank 0 answers the first goodbye by telling all that nothing is negotiated
// any more.
void Negotiate(Mesh& mesh, const PolledWorld::Event& event) {
  if (mesh.rank() == 0 && event.frame == "bye") {
    for (int peer = 1; peer < mesh.size(); ++peer) mesh.Send(peer, test::Frame("departure"));
    mesh.FinishSending();
  } else if (event.frame == "departure") {
    mesh.FinishSending();
  }
}

void SayBye(PolledWorld& world, int rank) {
  for (int peer = 0; peer < kSize; ++peer)
    if (peer != rank) world.Send(rank, peer, "bye");
}

std::vector<std::string> Frames(const std::vector<PolledWorld::Event>& events) {
  std::vector<std::string> frames;
  for (const auto& event : events)
    if (event.lost.ok()) frames.push_back(event.frame);
  std::ranges::sort(frames);  // they come by different ways
  return frames;
}

}  // namespace

TEST_CASE("what is sent in answer to a goodbye passes through the leader that leaves") {
  const int leaver = GENERATE(0, 1, 2, 4, 5, 6, 7);
  CAPTURE(leaver);
  // Far beyond what the goodbye may take: it does not end by running out of patience.
  auto meshes = test::JoinHosts(kRanksPerHost, DeepOptions(30s));
  REQUIRE(meshes.ok());
  PolledWorld world(std::move(*meshes), Negotiate);
  SayBye(world, leaver);
  if (leaver == 0) {  // it answers itself
    for (int peer = 1; peer < kSize; ++peer) world.Send(0, peer, "departure");
  }
  CHECK(world.Leave(leaver) < 10s);
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == leaver) continue;
    CAPTURE(rank);
    const std::vector<std::string> said =
        rank == 0 ? std::vector<std::string>{"bye"} : std::vector<std::string>{"bye", "departure"};
    const auto events = world.Await(rank, said.size() + 1);
    CHECK(Frames(events) == said);
    // Nobody else is lost before all was said.
    for (auto event = events.begin(); event != events.end(); ++event) {
      if (event->lost.ok() || event->peer == leaver) continue;
      CHECK(Frames({events.begin(), event}) == said);
    }
    for (const auto& [lost, cause] : Losses(events)) {
      CHECK(cause.culprit_rank() == leaver);
      CHECK_THAT(cause.message(), Catch::Contains("has left: its session was shut down"));
    }
  }
}

TEST_CASE("all leave at once, in any order, and each hears all before others are out of reach") {
  const auto seed = GENERATE(range(0, 10));
  CAPTURE(seed);
  Random random(static_cast<std::uint64_t>(seed));
  auto meshes = test::JoinHosts(kRanksPerHost, DeepOptions(30s));
  REQUIRE(meshes.ok());
  PolledWorld world(std::move(*meshes), Negotiate);
  const int first = 1 + Below(random, kSize - 1);
  SayBye(world, first);
  std::vector<int> delays;
  for (int rank = 0; rank < kSize; ++rank)
    delays.push_back(rank == first ? 0 : Below(random, 3000));
  const auto complaints = test::RunRanks(kSize, [&](int rank) -> std::string {
    std::this_thread::sleep_for(std::chrono::microseconds(delays[static_cast<std::size_t>(rank)]));
    // A rank leaves by itself only when it has heard that it is over: its session would be polled
    // until then.
    const std::string last = rank == 0 ? "bye" : "departure";
    std::vector<PolledWorld::Event> events;
    while (rank != first &&
           std::ranges::find(events, last, &PolledWorld::Event::frame) == events.end()) {
      const std::size_t before = events.size();
      events = world.Await(rank, before + 1);
      if (events.size() == before) return Format("rank {} does not hear '{}'", rank, last);
    }
    // Whom it has lost before has left by himself, and has said so.
    for (const auto& event : events) {
      if (event.frame == last) break;
      if (event.lost.culprit_rank() != event.peer && !event.lost.ok()) return event.lost.message();
    }
    const Duration took = world.Leave(rank);
    return took < 10s ? "" : Format("rank {} took {} ms", rank, took / 1ms);
  });
  for (const std::string& complaint : complaints) CHECK(complaint == "");
}

TEST_CASE("a leader that is killed while it stays for others is lost at once, and so are they") {
  auto meshes = test::JoinHosts(kRanksPerHost, DeepOptions());
  REQUIRE(meshes.ok());
  PolledWorld world(std::move(*meshes));  // nobody answers its goodbye
  SayBye(world, 2);
  world.Kill(2);
  CHECK(LostRanks(world.Await(0, 6)) == std::vector<int>{2, 3, 5, 6, 7});
  CHECK(LostRanks(world.Await(7, 9)) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 8, 9});
  for (const auto& [lost, cause] : Losses(world.Events(7))) {
    CHECK(cause.culprit_rank() == 2);
    CHECK_THAT(cause.message(), Catch::Contains("closed its link without saying goodbye"));
  }
}

TEST_CASE("a leader stays no longer for others than a host may be silent") {
  const bool frozen = GENERATE(false, true);
  CAPTURE(frozen);
  test::LogCapture log;
  MemoryStore store;
  const std::vector<int> ranks_per_host = {1, 2, 1};
  const std::vector<std::string> hosts = test::PretendedHosts(ranks_per_host);
  auto joined = test::RunRanks(4, [&](int rank) {
    MeshOptions options = DeepOptions(500ms);
    options.rank = rank;
    options.size = 4;
    options.host_id = hosts[static_cast<std::size_t>(rank)];
    return Mesh::Join(store, options, rank == 1 ? log.logger() : Logger());
  });
  test::Meshes meshes;
  for (auto& mesh : joined) {
    REQUIRE(mesh.ok());
    meshes.push_back(std::move(mesh).value());
  }
  PolledWorld world(std::move(meshes), [](Mesh& mesh, const PolledWorld::Event& event) {
    if (mesh.rank() != 2 && event.frame == "bye") mesh.FinishSending();
  });
  for (const int peer : {0, 2, 3}) world.Send(1, peer, "bye");
  if (frozen) world.Stop(2);
  const Duration took = world.Leave(1);
  CHECK(took >= 500ms);
  CHECK(took < 20s);
  CHECK(log.Contains("rank 1 leaves, although rank 2 may still need it"));
}

TEST_CASE("worlds of one host leave without waiting for anybody") {
  auto meshes = test::JoinRanks(3);
  REQUIRE(meshes.ok());
  PolledWorld world(std::move(*meshes));
  world.Leave(0);  // nobody answers
  for (const int rank : {1, 2}) {
    const auto losses = Losses(world.Await(rank, 1));
    REQUIRE(losses.contains(0));
    CHECK_THAT(losses.at(0).message(), Catch::Contains("has left"));
  }
}

}  // namespace hvl::net
