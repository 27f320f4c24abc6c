// Ranks that meet by a name, without a server of a launcher.
#include "csrc/net/meeting.h"

#include <sys/socket.h>
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <string>
#include <vector>

#include "csrc/net/mesh.h"
#include "csrc/net/round.h"
#include "csrc/net/socket.h"
#include "tests/support/ranks.h"

namespace hvl::net {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using test::kHangLimit;
using test::RunRanks;

/// A job of its own for each test, also where tests run at once.
std::string NewJob() { return MeetingId(RandomName()); }

Result<Rendezvous> JoinAs(const std::string& id, int rank, int size, const std::string& blob,
                          Duration timeout = kHangLimit, Interrupted interrupted = {}) {
  return MeetByName(id, std::move(interrupted), Logger())->Join(rank, size, blob, timeout);
}

bool SameKey(const Rendezvous& a, const Rendezvous& b) { return a.secret->key == b.secret->key; }

}  // namespace

TEST_CASE("an id stands for one job") {
  CHECK(MeetingId("a") == MeetingId("a"));
  CHECK(MeetingId("a") != MeetingId("b"));
  CHECK(MeetingId("").size() == 32);
}

TEST_CASE("all ranks of a name get all blobs and one new secret, each time they meet") {
  const std::string id = NewJob();
  const int size = GENERATE(1, 2, 7);
  constexpr int kRounds = 10;
  // Nobody waits between the rounds, so that the first of one meet the server of the last.
  const auto met = RunRanks(size, [&](int rank) {
    std::vector<Rendezvous> rounds;
    for (int round = 0; round < kRounds; ++round) {
      rounds.push_back(JoinAs(id, rank, size, Format("blob {} of round {}", rank, round)).value());
    }
    return rounds;
  });
  std::uint64_t last_generation = 0;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const Rendezvous& first = met.front()[round];
    CHECK(first.generation > last_generation);
    last_generation = first.generation;
    REQUIRE(first.secret.has_value());
    if (round > 0) CHECK_FALSE(SameKey(first, met.front()[round - 1]));
    for (const auto& rounds : met) {
      CHECK(rounds[round].generation == first.generation);
      CHECK(SameKey(rounds[round], first));
      REQUIRE(rounds[round].blobs.size() == static_cast<std::size_t>(size));
      for (std::size_t rank = 0; rank < rounds[round].blobs.size(); ++rank)
        CHECK(rounds[round].blobs[rank] == Format("blob {} of round {}", rank, round));
    }
  }
}

TEST_CASE("two jobs meet at once and do not mix") {
  const std::vector<std::string> ids = {NewJob(), NewJob()};
  const auto met = RunRanks(6, [&](int thread) {
    const auto job = static_cast<std::size_t>(thread % 2);
    return JoinAs(ids[job], thread / 2, 3, Format("job {}", job)).value();
  });
  for (std::size_t thread = 0; thread < met.size(); ++thread)
    CHECK(met[thread].blobs == std::vector<std::string>(3, Format("job {}", thread % 2)));
  CHECK_FALSE(SameKey(met[0], met[1]));
}

TEST_CASE("tables that no socket takes at once reach every rank") {
  const std::string id = NewJob();
  constexpr int kSize = 4;
  const std::size_t blob_bytes = kMaxBlobBytes - 32;
  const auto met = RunRanks(kSize, [&](int rank) {
    return JoinAs(id, rank, kSize, std::string(blob_bytes, static_cast<char>('a' + rank))).value();
  });
  for (const Rendezvous& table : met) {
    for (std::size_t rank = 0; rank < kSize; ++rank)
      CHECK(table.blobs[rank] == std::string(blob_bytes, static_cast<char>('a' + rank)));
  }
  CHECK(JoinAs(id, 0, 1, std::string(blob_bytes + 1, 'x')).status().code() ==
        StatusCode::kResourceExhausted);
}

TEST_CASE("when the rank that serves gives up, another one serves") {
  const std::string id = NewJob();
  std::atomic<int> asked = 0;
  std::atomic<bool> give_up = false;
  auto first = std::async(std::launch::async, [&] {
    return JoinAs(id, 0, 3, "gives up", kHangLimit, [&] {
      ++asked;
      return give_up.load();
    });
  });
  while (asked == 0) std::this_thread::yield();  // rank 0 waits, so it serves
  std::atomic<int> second_asked = 0;
  auto second = std::async(std::launch::async, [&] {
    return JoinAs(id, 1, 3, "stays", kHangLimit, [&] {
      ++second_asked;
      return false;
    });
  });
  while (second_asked == 0) std::this_thread::yield();
  give_up = true;
  CHECK(first.get().status().code() == StatusCode::kAborted);
  const auto others = RunRanks(2, [&](int i) { return JoinAs(id, 2 * i, 3, "comes again"); });
  CHECK(others[0].ok());
  const auto met = second.get();
  REQUIRE(met.ok());
  CHECK(met->blobs == std::vector<std::string>{"comes again", "stays", "comes again"});
}

TEST_CASE("a rank that waits in vain learns who is missing, and the name is free again") {
  const std::string id = NewJob();
  const auto alone = JoinAs(id, 1, 3, "", 30ms);
  CHECK(alone.status().code() == StatusCode::kTimeout);
  CHECK_THAT(alone.status().message(), Contains("missing: 0, 2."));
  CHECK(ListenAt(Format("hvl-meet-{}", id))->socket.valid());
}

TEST_CASE("ranks that contradict each other all learn it") {
  const std::string id = NewJob();
  const auto met = RunRanks(2, [&](int) { return JoinAs(id, 0, 3, ""); });
  for (const auto& result : met) {
    CHECK(result.status().code() == StatusCode::kMismatch);
    CHECK_THAT(result.status().message(), Contains("two processes join as rank 0"));
  }
}

TEST_CASE("a name whose owner serves nobody is reported in time") {
  const std::string id = NewJob();
  const Listener dead = ListenAt(Format("hvl-meet-{}", id)).value();
  REQUIRE(dead.socket.valid());
  ::shutdown(dead.socket.get(), SHUT_RDWR);  // as a forked child has it when its parent is done
  const auto joined = JoinAs(id, 0, 2, "", 50ms);
  CHECK(joined.status().code() == StatusCode::kTimeout);
  CHECK_THAT(joined.status().message(), Contains("serves nobody") && Contains("HVL_JOB_ID"));
  const auto stopped = JoinAs(id, 0, 2, "", kHangLimit, [] { return true; });
  CHECK(stopped.status().code() == StatusCode::kAborted);
}

TEST_CASE("links are made under the secret of the meeting") {
  const std::string id = NewJob();
  const auto meshes = RunRanks(3, [&](int rank) {
    const auto store = MeetByName(id, {}, Logger());
    return Mesh::Join(*store, {.rank = rank, .size = 3, .job_id = id, .secret = {}, .blob = "b"},
                      Logger())
        .value();
  });
  for (const auto& mesh : meshes) CHECK(mesh->blobs() == std::vector<std::string>(3, "b"));
}

namespace {

/// A free port of this host, which nobody else is likely to take in the next moment.
HeadPlace NewHead(const Secret& secret) {
  const Listener probe = ListenOn("127.0.0.1").value();
  return {.address = ParseTcp(probe.address).value(),
          .networks = {},
          .secret = secret,
          .job_id = NewJob()};
}

}  // namespace

TEST_CASE("ranks meet at rank 0, again and again, under a new secret each time", "[head]") {
  const HeadPlace place = NewHead(Secret::Random());
  constexpr int kRounds = 5;
  const auto met = RunRanks(3, [&](int rank) {
    const auto store = MeetAtRankZero(place, {}, Logger());
    std::vector<Rendezvous> rounds;
    for (int round = 0; round < kRounds; ++round)
      rounds.push_back(store->Join(rank, 3, Format("{} {}", rank, round), kHangLimit).value());
    return rounds;
  });
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (const auto& rounds : met) {
      CHECK(rounds[round].generation == met[0][round].generation);
      CHECK(SameKey(rounds[round], met[0][round]));
      CHECK(rounds[round].blobs[2] == Format("2 {}", round));
    }
    if (round == 0) continue;
    CHECK(met[0][round].generation > met[0][round - 1].generation);
    CHECK_FALSE(SameKey(met[0][round], met[0][round - 1]));
  }
}

TEST_CASE("who has another secret does not get in at rank 0, and rank 0 tells who is missing",
          "[head]") {
  const HeadPlace place = NewHead(Secret::Random());
  const auto met = RunRanks(2, [&](int rank) {
    HeadPlace own = place;
    if (rank == 1) own.secret = Secret::Random();
    return MeetAtRankZero(own, {}, Logger())->Join(rank, 2, "", 1s).status();
  });
  CHECK(met[0].code() == StatusCode::kTimeout);
  CHECK_THAT(met[0].message(), Contains("missing: 1"));
  CHECK_FALSE(met[1].ok());
}

TEST_CASE("rank 0 says why it cannot serve", "[head]") {
  HeadPlace place = NewHead(Secret());
  const Listener taken = ListenAt(NumericAddress(TcpText(place.address)).value()).value();
  REQUIRE(taken.socket.valid());
  const Status status = MeetAtRankZero(place, {}, Logger())->Join(0, 2, "", 1s).status();
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(status.message(), Contains("HVL_STORE_PORT"));
  place.address.host = "198.51.100.1";
  const Status foreign = MeetAtRankZero(place, {}, Logger())->Join(0, 2, "", 1s).status();
  CHECK(foreign.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(foreign.message(), Contains("MASTER_ADDR") && Contains("198.51.100.1"));
}

}  // namespace hvl::net
