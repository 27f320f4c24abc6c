#include "csrc/net/host_tree.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "csrc/net/heartbeats.h"
#include "csrc/net/route.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::net {
namespace {

using namespace std::chrono_literals;

std::vector<HostTree> TreesOf(const std::vector<int>& hosts, int radix) {
  std::vector<HostTree> trees;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank)
    trees.emplace_back(hosts, rank, radix);
  return trees;
}

}  // namespace

TEST_CASE("from every rank to every other one there is one way, over links that both ends know",
          "[host_tree]") {
  const int radix = GENERATE(1, 2, 3, 8);
  std::mt19937 random(static_cast<unsigned>(radix));
  for (int world = 0; world < 30; ++world) {
    std::vector<int> hosts;
    const int host_count = static_cast<int>(random() % 20) + 1;
    for (int host = 0; host < host_count; ++host) hosts.insert(hosts.end(), random() % 4 + 1, host);
    const auto trees = TreesOf(hosts, radix);
    const int size = static_cast<int>(hosts.size());
    for (int from = 0; from < size; ++from) {
      const HostTree& own = trees[static_cast<std::size_t>(from)];
      CHECK(own.neighbours().size() <= static_cast<std::size_t>(radix) + 1);
      for (int to = 0; to < size; ++to) {
        if (to == from) continue;
        int at = from;
        for (int steps = 0; at != to; ++steps) {
          REQUIRE(steps <= size);
          const int next = trees[static_cast<std::size_t>(at)].next_hop(to);
          // A link is one at both ends, and the way back leads over it.
          REQUIRE(trees[static_cast<std::size_t>(next)].is_linked(at));
          REQUIRE(trees[static_cast<std::size_t>(next)].next_hop(from) == at);
          at = next;
        }
      }
    }
  }
}

TEST_CASE("a tree of hosts has leaders, and what is behind a link is all that it reaches",
          "[host_tree]") {
  // Hosts of 2 ranks; with radix 2: 0 over 1 and 2, 1 over 3 and 4.
  const std::vector<int> hosts = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4};
  const HostTree root(hosts, 0, 2);
  CHECK(root.spans_hosts());
  CHECK(root.leads());
  CHECK(root.neighbours() == std::vector<int>{2, 4});
  CHECK(root.Behind(2) == std::vector<int>{2, 3, 6, 7, 8, 9});
  CHECK(root.Behind(1) == std::vector<int>{1});
  const HostTree middle(hosts, 2, 2);
  CHECK(middle.neighbours() == std::vector<int>{0, 6, 8});
  CHECK(middle.Behind(0) == std::vector<int>{0, 1, 4, 5});
  const HostTree follower(hosts, 3, 2);
  CHECK_FALSE(follower.leads());
  CHECK(follower.neighbours().empty());
  CHECK(follower.Behind(2) == std::vector<int>{0, 1, 2, 4, 5, 6, 7, 8, 9});
  CHECK_FALSE(HostTree({0, 0, 0}, 0, 8).spans_hosts());
}

TEST_CASE("news of a loss survives its encoding, and anything else is refused", "[route]") {
  const LossNotice loss{{2, 3, 4, 7, 9}, Status(StatusCode::kUnavailable, "gone", 4)};
  const std::string text = EncodeLoss(loss);
  const auto decoded = DecodeLoss(test::Frame(text), 10);
  REQUIRE(decoded.ok());
  CHECK(decoded->ranks == loss.ranks);
  CHECK(decoded->cause == loss.cause);
  CHECK_FALSE(DecodeLoss(test::Frame(text), 9).ok());
  for (std::size_t cut = 0; cut < text.size(); ++cut)
    CHECK_FALSE(DecodeLoss(test::Frame(text.substr(0, cut)), 10).ok());
  CHECK_FALSE(DecodeLoss(test::Frame(text + "x"), 10).ok());
  const std::string not_among_them =
      EncodeLoss({{2, 3}, Status(StatusCode::kUnavailable, "gone", 5)});
  CHECK_FALSE(DecodeLoss(test::Frame(not_among_them), 10).ok());
  const std::string downwards = EncodeLoss({{3, 2}, Status(StatusCode::kUnavailable, "gone", 2)});
  CHECK_FALSE(DecodeLoss(test::Frame(downwards), 10).ok());
  const LossNotice long_story{{1}, Status(StatusCode::kTimeout, std::string(10'000, 'x'), 1)};
  CHECK(DecodeLoss(test::Frame(EncodeLoss(long_story)), 10)->cause.message().size() == 4096);
}

TEST_CASE("who has begun to beat and falls silent is dead after the limit, and nobody else",
          "[heartbeats]") {
  const std::vector<int> peers = {4, 8};
  Heartbeats beats(peers, 2s, 60s);
  TimePoint now = TimePoint{} + 100h;
  CHECK(beats.due(now));
  CHECK(beats.Turn(now).empty());
  CHECK(beats.Remaining(now) == 250ms);
  beats.Heard(4, now);
  // Rank 8 is still setting itself up, which may take longer.
  std::vector<int> silent;
  for (int turn = 1; turn <= 8; ++turn) {
    now += 250ms;
    CHECK(beats.due(now));
    CHECK(beats.Turn(now).empty());
  }
  now += 250ms;
  CHECK(beats.Turn(now) == std::vector<int>{4});
  beats.Forget(4);
  for (int turn = 0; turn < 60 * 4; ++turn) {
    now += 250ms;
    silent = beats.Turn(now);
  }
  CHECK(silent == std::vector<int>{8});
}

TEST_CASE("who was stopped himself does not take the others for dead", "[heartbeats]") {
  const std::vector<int> peers = {4};
  Heartbeats beats(peers, 2s, 60s);
  TimePoint now = TimePoint{} + 1h;
  beats.Turn(now);
  beats.Heard(4, now);
  now += 10s;
  CHECK(beats.Turn(now).empty());
  std::vector<int> silent;
  for (int turn = 0; turn < 9; ++turn) {
    CHECK(silent.empty());
    now += 250ms;
    silent = beats.Turn(now);
  }
  CHECK(silent == std::vector<int>{4});
}

}  // namespace hvl::net
