// The words by which ranks meet: payloads, sleeping and waking, aborts, and words that make no
// sense.
#include "csrc/collective/local_board.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "csrc/base/str.h"
#include "tests/support/ranks.h"

namespace hvl::collective {
namespace {

using Catch::Contains;
using test::RunRanks;
using namespace std::chrono_literals;

// The boards of a world, each with mappings of its own, as in separate processes.
class Boards {
 public:
  Boards(int ranks, Duration spin) {
    const auto identity = [ranks](int rank) {
      return ArenaIdentity{.rank = rank, .ranks = ranks, .staging_bytes = 65536};
    };
    const std::size_t words_bytes = Board::WordsBytes(ranks);
    std::vector<int> fds;
    for (int rank = 0; rank < ranks; ++rank) {
      auto own = Arena::Create(identity(rank), words_bytes, 0);
      REQUIRE(own.ok());
      Board::Initialise(**own, ranks);
      fds.push_back((*own)->fd());
      arenas_.push_back(std::move(own).value());
    }
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<const Arena*> by_rank;
      for (int owner = 0; owner < ranks; ++owner) {
        const auto index = static_cast<std::size_t>(owner);
        if (owner == rank) {
          by_rank.push_back(arenas_[index].get());
          continue;
        }
        auto opened =
            Arena::Open(net::UniqueFd(::dup(fds[index])), owner, identity(rank), words_bytes);
        REQUIRE(opened.ok());
        by_rank.push_back(opened->get());
        arenas_.push_back(std::move(opened).value());
      }
      boards_.push_back(std::make_unique<Board>(rank, by_rank, spin));
    }
  }

  Board& operator[](int rank) { return *boards_[static_cast<std::size_t>(rank)]; }
  /// The words of rank `rank` as its peers write them.
  std::byte* words(int rank) { return arenas_[static_cast<std::size_t>(rank)]->words(); }

 private:
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<Board>> boards_;
};

// A payload that tells rank and exchange.
std::vector<std::byte> Pattern(int rank, int exchange, std::size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (std::size_t at = 0; at < bytes; ++at) {
    pattern[at] = static_cast<std::byte>(at * 7 + static_cast<std::size_t>(rank * 31 + exchange));
  }
  return pattern;
}

TEST_CASE("every rank sees every payload of any size, exchange after exchange") {
  const int ranks = GENERATE(2, 3, 5);
  const Duration spin = GENERATE(0us, 50us);
  Boards boards(ranks, spin);
  const auto wrong = RunRanks(ranks, [&](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    int failures = 0;
    for (int exchange = 0; exchange < 500; ++exchange) {
      const std::size_t most = exchange % 3 == 0 ? kMaxPayloadBytes : Board::kInlineBytes + 2;
      const auto mine = Pattern(rank, exchange, random() % (most + 1));
      std::ranges::copy(mine, boards[rank].Payload(mine.size()));
      if (!boards[rank].Exchange(9, mine.size()).ok()) return -1;
      for (int peer = 0; peer < ranks; ++peer) {
        const auto shown = boards[rank].Shown(peer);
        const auto expected = Pattern(peer, exchange, shown.size());
        if (!std::ranges::equal(shown, expected)) ++failures;
      }
    }
    return failures;
  });
  for (const int failures : wrong) CHECK(failures == 0);
}

TEST_CASE("no rank gets further ahead than the turns it has to wait for") {
  const int ranks = GENERATE(2, 4);
  const Duration spin = GENERATE(0us, 50us);
  constexpr std::uint32_t kLead = 2;
  Boards boards(ranks, spin);
  std::atomic<int> finished[500] = {};
  const auto wrong = RunRanks(ranks, [&](int rank) {
    Board& board = boards[rank];
    int failures = 0;
    for (std::uint32_t turn = 0; turn < 500; ++turn) {
      if (!board.AwaitTurns(board.turns() - kLead + 1).ok()) return -1;
      if (turn >= kLead && finished[turn - kLead].load() != ranks) ++failures;
      ++finished[turn];
      board.FinishTurn();
    }
    return failures;
  });
  for (const int failures : wrong) CHECK(failures == 0);
}

TEST_CASE("an abort is the result of the running and of every later wait") {
  Boards boards(2, 0us);
  const Status cause(StatusCode::kUnavailable, "gone", 1);
  auto waiting = std::async(std::launch::async, [&] { return boards[0].Exchange(1, 0); });
  boards[0].Abort(cause);
  CHECK(waiting.get() == cause);
  CHECK(boards[0].aborted() == cause);
  CHECK(boards[0].AwaitTurns(boards[0].turns() + 1) == cause);
  CHECK(boards[1].aborted().ok());
}

TEST_CASE("ranks that run different operations are told so") {
  Boards boards(2, 50us);
  const auto statuses = RunRanks(
      2, [&](int rank) { return boards[rank].Exchange(static_cast<std::uint16_t>(rank), 0); });
  for (const Status& status : statuses) {
    CHECK(status.code() == StatusCode::kInternal);
    CHECK_THAT(status.message(), Contains("same order"));
  }
}

TEST_CASE("a gate is passed when all ranks have come to it, not before") {
  const int ranks = GENERATE(2, 4);
  const Duration spin = GENERATE(0us, 50us);
  Boards boards(ranks, spin);
  std::atomic<int> came[501] = {};
  const auto wrong = RunRanks(ranks, [&](int rank) {
    int failures = 0;
    for (std::uint64_t gate = 1; gate <= 500; ++gate) {
      ++came[gate];
      const auto passed = boards[rank].PassGate(gate, static_cast<std::uint32_t>(gate * 7), true);
      if (!passed.ok() || *passed != GateResult::kPassed) return -1;
      if (came[gate].load() != ranks) ++failures;
    }
    return failures;
  });
  for (const int failures : wrong) CHECK(failures == 0);
}

// As a thaw does it: the last gate to which all ranks will come is known when ranks are called
// back, some of which wait at the one behind it, asleep or not, and some of which are on their way.
TEST_CASE("ranks that are called back pass the gates up to there and no other") {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kEpoch = 1 << 16;
  const Duration spin = GENERATE(0us, 20us);
  const auto seed = GENERATE(1U, 2U, 3U);
  INFO("seed " << seed);
  Boards boards(kRanks, spin);
  std::vector<std::uint64_t> lasts;
  std::mt19937 random(seed);
  for (int epoch = 0; epoch < 60; ++epoch) lasts.push_back(random() % 8);
  std::atomic<int> epochs_ended{0};
  const auto wrong = RunRanks(kRanks, [&](int rank) {
    int failures = 0;
    for (std::uint64_t epoch = 1; epoch <= lasts.size(); ++epoch) {
      const std::uint64_t last = lasts[epoch - 1];
      // One rank does not come further; the others try as many gates as they can.
      const std::uint64_t tries = epoch % kRanks == static_cast<unsigned>(rank) ? last : last + 3;
      auto caller = std::async(std::launch::async, [&] {
        boards[rank].Withdraw(epoch * kEpoch + last + 1, epoch * kEpoch + kEpoch - 1);
      });
      std::uint64_t passed = 0;
      for (std::uint64_t gate = 1; gate <= tries; ++gate) {
        // Some look again and again instead of falling asleep.
        Result<GateResult> result = GateResult::kNotYet;
        do {
          result = boards[rank].PassGate(epoch * kEpoch + gate, 5, rank != 2);
          if (!result.ok()) return -1;
        } while (*result == GateResult::kNotYet);
        if (*result == GateResult::kPassed) ++passed;
      }
      caller.get();
      if (passed != last) ++failures;
      ++epochs_ended;
      while (epochs_ended.load() < static_cast<int>(epoch) * kRanks) std::this_thread::yield();
    }
    return failures;
  });
  for (const int failures : wrong) CHECK(failures == 0);
}

TEST_CASE("ranks behind whose gates different operations lie are told so") {
  Boards boards(2, 50us);
  const auto passed = RunRanks(2, [&](int rank) {
    return boards[rank].PassGate(1, static_cast<std::uint32_t>(rank), true);
  });
  for (const Result<GateResult>& result : passed) {
    CHECK(result.status().code() == StatusCode::kInternal);
    CHECK_THAT(result.status().message(), Contains("frozen plan"));
  }
}

TEST_CASE("an abort ends the wait at a gate") {
  Boards boards(2, 0us);
  const Status cause(StatusCode::kUnavailable, "gone", 1);
  auto waiting =
      std::async(std::launch::async, [&] { return boards[0].PassGate(1, 0, true).status(); });
  boards[0].Abort(cause);
  CHECK(waiting.get() == cause);
}

// Overwrites all words that peers write to rank 0.
void Scribble(Boards& boards, std::byte value) {
  std::memset(boards.words(0) + 2 * kLineBytes, static_cast<int>(value), 2 * sizeof(PeerWords));
}

TEST_CASE("words that a crashing peer has overwritten end the wait with its name, not in a hang") {
  const Duration spin = GENERATE(0us, 50us);
  const auto rubbish = GENERATE(std::byte{0x7f}, std::byte{0x80}, std::byte{0x11});
  INFO("value " << std::to_integer<int>(rubbish));
  Boards boards(2, spin);
  Scribble(boards, rubbish);
  const Status exchange = boards[0].Exchange(1, 0);
  CHECK(exchange.code() == StatusCode::kInternal);
  CHECK(exchange.culprit_rank() == 1);
  CHECK_THAT(exchange.message(), Contains("rank 1"));
  CHECK(boards[0].AwaitTurns(boards[0].turns() + 1).code() == StatusCode::kInternal);
  CHECK(boards[0].PassGate(1, 0, true).status().culprit_rank() == 1);
}

}  // namespace
}  // namespace hvl::collective
