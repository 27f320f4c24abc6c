// A mesh whose ranks pretend to be on several hosts: frames find their way, losses are told to all,
// and nobody between two hosts can do more than cut them off from each other.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "csrc/net/handshake.h"
#include "csrc/net/rank_card.h"
#include "tests/support/mesh_ranks.h"
#include "tests/support/polled_world.h"
#include "tests/support/tcp_proxy.h"

namespace hvl::net {
namespace {

using namespace std::chrono_literals;
using test::Losses;
using test::LostRanks;
using test::Meshes;
using test::PolledWorld;
using test::RecordingReceiver;
using test::TcpProxy;

MeshOptions Options(int radix = 8) {
  MeshOptions options;
  options.job_id = "job";
  options.radix = radix;
  return options;
}

}  // namespace

TEST_CASE("every rank reaches every other one over hosts, in order", "[mesh_hosts]") {
  const int radix = GENERATE(1, 2, 8);
  const std::vector<int> ranks_per_host = {2, 1, 3, 1, 2, 1};
  auto meshes = test::JoinHosts(ranks_per_host, Options(radix));
  INFO(meshes.status().ToString());
  REQUIRE(meshes.ok());
  PolledWorld world(std::move(*meshes));
  constexpr int kSize = 10, kFrames = 20;
  const std::string large(100'000, 'x');
  for (int i = 0; i < kFrames; ++i) {
    for (int from = 0; from < kSize; ++from) {
      for (int to = 0; to < kSize; ++to)
        if (to != from) world.Send(from, to, Format("{} {} {}", i, to, i == 7 ? large : ""));
    }
  }
  constexpr auto kEvents = static_cast<std::size_t>(kFrames) * (kSize - 1);
  for (int rank = 0; rank < kSize; ++rank) {
    const auto events = world.Await(rank, kEvents);
    REQUIRE(events.size() == kEvents);
    std::map<int, int> next;
    for (const auto& event : events) {
      const int i = next[event.peer]++;
      CHECK((event.frame == Format("{} {} {}", i, rank, i == 7 ? large : "")));
    }
  }
}

TEST_CASE("the largest frame travels between hosts", "[mesh_hosts]") {
  const std::vector<int> ranks_per_host = {2, 2};
  MeshOptions options = Options();
  options.silence_limit = 60s;  // a sanitizer takes seconds to seal it, in which no rank is polled
  auto meshes = test::JoinHosts(ranks_per_host, options);
  REQUIRE(meshes.ok());
  PolledWorld world(std::move(*meshes));
  const std::string largest(kMaxFrameBytes, 'y');
  world.Send(1, 3, largest);
  world.Send(1, 3, "after it");
  const auto events = world.Await(3, 2);
  REQUIRE(events.size() == 2);
  CHECK((events[0].frame == largest));
  CHECK(events[1].frame == "after it");
}

TEST_CASE("a rank that goes is lost once to everybody, after its last frame", "[mesh_hosts]") {
  const int radix = GENERATE(2, 8);
  const bool says_goodbye = GENERATE(true, false);
  const std::vector<int> ranks_per_host = {2, 2, 1, 2, 1};
  auto meshes = test::JoinHosts(ranks_per_host, Options(radix));
  REQUIRE(meshes.ok());
  PolledWorld world(std::move(*meshes));
  constexpr int kGone = 6;  // not the leader of its host, which is a leaf of the tree
  for (int to = 0; to < 8; ++to)
    if (to != kGone) world.Send(kGone, to, "last words");
  if (says_goodbye) {
    world.Leave(kGone);
  } else {
    world.Kill(kGone);
  }
  for (int rank = 0; rank < 8; ++rank) {
    if (rank == kGone) continue;
    const auto events = world.Await(rank, 2);
    REQUIRE(events.size() == 2);
    CHECK(events[0].frame == "last words");
    CHECK(events[1].peer == kGone);
    CHECK(events[1].lost.culprit_rank() == kGone);
    CHECK_THAT(events[1].lost.message(),
               Catch::Contains(says_goodbye ? "has left" : "closed its link"));
  }
  // The others go on.
  world.Send(7, 0, "still here");
  CHECK(world.Await(0, 3).back().frame == "still here");
}

TEST_CASE("a leader that goes takes its host along, and all name it", "[mesh_hosts]") {
  const int radix = GENERATE(2, 8);
  const std::vector<int> ranks_per_host = {2, 2, 1, 2, 1};
  auto meshes = test::JoinHosts(ranks_per_host, Options(radix));
  REQUIRE(meshes.ok());
  PolledWorld world(std::move(*meshes));
  world.Kill(2);  // over host 3 (ranks 5, 6) and host 4 (rank 7) where the radix is 2
  const std::vector<int> behind =
      radix == 2 ? std::vector<int>{2, 3, 5, 6, 7} : std::vector<int>{2, 3};
  for (const int rank : {0, 1, 4}) {
    const auto events = world.Await(rank, behind.size());
    CHECK(LostRanks(events) == behind);
    CHECK(events.front().peer == 2);
    for (const auto& [lost, cause] : Losses(events)) {
      CHECK(cause.culprit_rank() == 2);
      if (lost != 2)
        CHECK_THAT(cause.message(), Catch::Contains(Format("rank {} was reached through", lost)));
    }
  }
  // Its own host loses the way to everybody else.
  CHECK(LostRanks(world.Await(3, 7)) == std::vector<int>{0, 1, 2, 4, 5, 6, 7});
  if (radix == 2) CHECK(LostRanks(world.Await(6, 6)) == std::vector<int>{0, 1, 2, 3, 4, 7});
}

TEST_CASE("a host whose processes are stopped is noticed by all others within three seconds",
          "[mesh_hosts]") {
  const int radix = GENERATE(2, 8);
  const std::vector<int> ranks_per_host = {1, 2, 1, 1};
  auto meshes = test::JoinHosts(ranks_per_host, Options(radix));
  REQUIRE(meshes.ok());
  PolledWorld world(std::move(*meshes));
  std::this_thread::sleep_for(600ms);  // all have begun to beat
  CHECK(world.Events(0).empty());
  const TimePoint stopped = SteadyClock().Now();
  world.Stop(1);
  world.Stop(2);
  const std::vector<int> behind = radix == 2 ? std::vector<int>{1, 2, 4} : std::vector<int>{1, 2};
  for (const int rank : {0, 3}) {
    const auto events = world.Await(rank, behind.size(), 10s);
    CHECK(LostRanks(events) == behind);
    REQUIRE_FALSE(events.empty());
    CHECK(events.front().lost.culprit_rank() == 1);
    CHECK_THAT(events.front().lost.message(), Catch::Contains("no sign of life for 2.0 s"));
  }
  CHECK(LostRanks(world.Await(4, radix == 2 ? 4 : 2, 10s)).size() == (radix == 2 ? 4 : 2));
  CHECK(SteadyClock().Now() - stopped < 3s);
}

TEST_CASE("worlds of one host beat for nobody", "[mesh_hosts]") {
  auto meshes = test::JoinRanks(2);
  REQUIRE(meshes.ok());
  RecordingReceiver receiver;
  const TimePoint begin = SteadyClock().Now();
  (*meshes)[0]->Sleep(700ms);  // nothing ends it
  CHECK(SteadyClock().Now() - begin >= 700ms);
  CHECK_FALSE((*meshes)[0]->Poll(Duration::zero(), receiver));
}

namespace {

// Puts a proxy in front of each leader, as the other ranks see it.
class ProxyStore final : public Store {
 public:
  explicit ProxyStore(TcpProxy::Tamper tamper) : tamper_(std::move(tamper)) {}

  Result<Rendezvous> Join(int rank, int size, const std::string& blob, Duration timeout) override {
    RankCard card = DecodeCard(blob, rank).value();
    auto proxy = std::make_unique<TcpProxy>(card.leader_address, tamper_);
    card.leader_address = proxy->address();
    {
      const std::lock_guard lock(mutex_);
      proxies_[rank] = std::move(proxy);
    }
    return memory_.Join(rank, size, EncodeCard(card), timeout);
  }
  TcpProxy& proxy(int rank) { return *proxies_.at(rank); }

 private:
  const TcpProxy::Tamper tamper_;
  MemoryStore memory_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<TcpProxy>> proxies_;
};

/// Two hosts of two ranks with a man between them.
struct TamperedWorld {
  explicit TamperedWorld(TcpProxy::Tamper tamper) : store(std::move(tamper)) {
    auto joined = test::RunRanks(4, [&](int rank) {
      MeshOptions options = Options();
      options.rank = rank;
      options.size = 4;
      options.host_id = rank < 2 ? "a" : "b";
      return Mesh::Join(store, options, Logger());
    });
    Meshes meshes;
    for (auto& mesh : joined) {
      INFO(mesh.status().ToString());
      REQUIRE(mesh.ok());
      meshes.push_back(std::move(mesh).value());
    }
    world = std::make_unique<PolledWorld>(std::move(meshes));
  }

  ProxyStore store;
  std::unique_ptr<PolledWorld> world;
};

// What the hand-shake takes in each direction; what follows is sealed.
constexpr std::size_t kClientBytes = kHelloBytes + kProofBytes;
constexpr std::size_t kServerBytes = kChallengeBytes + kAcceptBytes;

}  // namespace

TEST_CASE("a changed byte between hosts ends the link, and nothing false is delivered",
          "[mesh_hosts]") {
  const std::size_t victim = GENERATE(0, 3, 4, 11, 30);
  std::atomic<bool> armed = false, done = false;
  std::atomic<std::size_t> begin = 0;
  TamperedWorld tampered([&](bool to_server, std::size_t offset, std::string& bytes) {
    if (!to_server || !armed.load() || done.load()) return true;
    if (begin.load() == 0) begin.store(offset);
    const std::size_t at = begin.load() + victim;
    if (at >= offset && at < offset + bytes.size()) {
      bytes[at - offset] = static_cast<char>(bytes[at - offset] ^ 0x10);
      done.store(true);
    }
    return true;
  });
  tampered.world->Send(3, 0, "before");
  REQUIRE(tampered.world->Await(0, 1).front().frame == "before");
  armed.store(true);
  for (int i = 0; i < 100; ++i) tampered.world->Send(3, 0, "true");
  const auto events = tampered.world->Await(0, 1 + 2, 10s);
  for (int rank = 0; rank < 2; ++rank) {
    std::map<int, Status> losses;
    const TimePoint give_up = SteadyClock().Now() + test::kHangLimit;
    while (losses.size() < 2 && SteadyClock().Now() < give_up)
      losses = Losses(tampered.world->Events(rank));
    REQUIRE(losses.size() == 2);
    CHECK(losses.at(2).code() == StatusCode::kInternal);
    CHECK_THAT(losses.at(2).message(), Catch::Contains("corrupt"));
    CHECK(losses.at(3).culprit_rank() == 2);
    for (const auto& event : tampered.world->Events(rank))
      CHECK((!event.lost.ok() || event.frame == "before" || event.frame == "true"));
  }
}

TEST_CASE("bytes repeated or left out between hosts end the link", "[mesh_hosts]") {
  const bool repeat = GENERATE(true, false);
  std::atomic<bool> armed = false;
  TamperedWorld tampered([&](bool to_server, std::size_t, std::string& bytes) {
    if (!to_server || !armed.exchange(false)) return true;
    bytes = repeat ? bytes + bytes : "";
    return true;
  });
  armed.store(true);
  for (int i = 0; i < 10; ++i) {
    tampered.world->Send(3, 0, Format("frame {}", i));
    std::this_thread::sleep_for(5ms);
  }
  std::map<int, Status> losses;
  const TimePoint give_up = SteadyClock().Now() + test::kHangLimit;
  while (losses.size() < 2 && SteadyClock().Now() < give_up)
    losses = Losses(tampered.world->Events(0));
  REQUIRE(losses.size() == 2);
  CHECK(losses.at(2).code() == StatusCode::kInternal);
  std::set<std::string> frames;
  for (const auto& event : tampered.world->Events(0))
    if (event.lost.ok()) CHECK(frames.insert(event.frame).second);  // none twice
}

TEST_CASE("a link that is cut, and one that falls silent without an end, are losses",
          "[mesh_hosts]") {
  const bool silent = GENERATE(false, true);
  TamperedWorld tampered(nullptr);
  for (int rank = 0; rank < 4; ++rank) tampered.world->Send(rank, (rank + 2) % 4, "works");
  for (int rank = 0; rank < 4; ++rank) CHECK(tampered.world->Await(rank, 1).size() == 1);
  std::this_thread::sleep_for(600ms);
  const TimePoint begin = SteadyClock().Now();
  if (silent) {
    tampered.store.proxy(0).Freeze();
  } else {
    tampered.store.proxy(0).Cut();
  }
  for (int rank = 0; rank < 4; ++rank) {
    const auto losses = Losses(tampered.world->Await(rank, 3, 10s));
    REQUIRE(losses.size() == 2);
    const int leader = rank < 2 ? 2 : 0;
    CHECK(losses.at(leader).culprit_rank() == leader);
    CHECK(losses.at(leader + 1).culprit_rank() == leader);
    CHECK_THAT(losses.at(leader).message(), Catch::Contains(silent ? "no sign of life" : "clos") ||
                                                Catch::Contains("gone or cut off"));
  }
  CHECK(SteadyClock().Now() - begin < 3s);
}

TEST_CASE("delay and small pieces between hosts change nothing", "[mesh_hosts]") {
  TamperedWorld tampered([](bool, std::size_t, std::string&) {
    std::this_thread::sleep_for(100ms);
    return true;
  });
  for (int i = 0; i < 50; ++i) tampered.world->Send(1, 2, Format("frame {}", i));
  const auto events = tampered.world->Await(2, 50);
  REQUIRE(events.size() == 50);
  std::this_thread::sleep_for(3s);
  CHECK(tampered.world->Events(2).size() == 50);  // nobody was taken for dead
}

TEST_CASE("a hand-shake between leaders that is cut at any byte is tried again", "[mesh_hosts]") {
  const std::size_t step = 37;
  std::atomic<std::size_t> cut = 0;
  TamperedWorld tampered([&](bool to_server, std::size_t offset, std::string& bytes) {
    const std::size_t total = to_server ? kClientBytes : kServerBytes;
    const std::size_t at = cut.load();
    if (at >= total || at < offset || at >= offset + bytes.size()) return true;
    cut.store(at + step);
    return false;
  });
  CHECK(cut.load() > 0);
  tampered.world->Send(3, 1, "through");
  CHECK(tampered.world->Await(1, 1).front().frame == "through");
}

TEST_CASE("hosts that met at a store for one host are told so", "[mesh_hosts]") {
  // As with MemoryStore, but the ranks do not pretend: they have no address for other hosts.
  class OneHostStore final : public Store {
   public:
    Result<Rendezvous> Join(int rank, int size, const std::string& blob,
                            Duration timeout) override {
      RankCard card = DecodeCard(blob, rank).value();
      card.host_id = std::to_string(rank);
      return memory_.Join(rank, size, EncodeCard(card), timeout);
    }

   private:
    MemoryStore memory_;
  } store;
  const auto joined = test::RunRanks(2, [&](int rank) {
    MeshOptions options = Options();
    options.rank = rank;
    options.size = 2;
    return Mesh::Join(store, options, Logger()).status();
  });
  for (const Status& status : joined) {
    CHECK(status.code() == StatusCode::kUnavailable);
    CHECK_THAT(status.message(), Catch::Contains("serves one host only"));
  }
}

}  // namespace hvl::net
