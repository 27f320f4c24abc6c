// How ranks of several hosts come together: where they listen, and what becomes of a leader that
// dies on the way.
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/net/interfaces.h"
#include "csrc/net/rank_card.h"
#include "tests/support/log_capture.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::net {
namespace {

using namespace std::chrono_literals;

// Keeps the cards, and says that this host reaches it from `local_host`.
class CardStore final : public Store {
 public:
  explicit CardStore(std::string local_host) : local_host_(std::move(local_host)) {}

  Result<Rendezvous> Join(int rank, int size, const std::string& blob, Duration timeout) override {
    {
      const std::lock_guard lock(mutex_);
      cards_[rank] = DecodeCard(blob, rank).value();
    }
    return memory_.Join(rank, size, blob, timeout);
  }
  Result<std::string> LocalHost(TimePoint) override { return local_host_; }
  RankCard card(int rank) {
    const std::lock_guard lock(mutex_);
    return cards_.at(rank);
  }

 private:
  const std::string local_host_;
  MemoryStore memory_;
  std::mutex mutex_;
  std::map<int, RankCard> cards_;
};

struct Chosen {
  std::string leader, data;  // hosts of the listeners
  bool told = false;         // that there were several
};

Chosen Choose(const std::string& networks, const std::string& local_host) {
  CardStore store(local_host);
  test::LogCapture log;
  const auto joined = test::RunRanks(2, [&](int rank) {
    MeshOptions options;
    options.job_id = "job";
    options.rank = rank;
    options.size = 2;
    options.host_id = std::to_string(rank);
    options.networks = networks;
    return Mesh::Join(store, options, rank == 0 ? log.logger() : Logger()).status();
  });
  for (const Status& status : joined) {
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
  const RankCard card = store.card(0);
  return {.leader = ParseTcp(card.leader_address).value().host,
          .data = ParseTcp(card.data_address).value().host,
          .told = log.Contains("names several addresses of this host")};
}

}  // namespace

TEST_CASE("control and data links listen at the one address that is chosen") {
  const Chosen by_store = Choose("", "127.0.0.1");
  CHECK(by_store.leader == "127.0.0.1");
  CHECK(by_store.data == "127.0.0.1");
  const Chosen by_network = Choose("127.0.0.1", "192.0.2.1");
  CHECK(by_network.leader == "127.0.0.1");
  CHECK(by_network.data == "127.0.0.1");
  CHECK_FALSE(by_network.told);
}

TEST_CASE("of several addresses that are allowed, the one that leads to the store is chosen") {
  const std::vector<std::string> addresses = ChooseAddresses("0.0.0.0/0,::/0").value();
  CAPTURE(addresses);
  for (const std::string& address : addresses) {
    if (address.starts_with("fe80:")) continue;  // needs its interface
    const Chosen chosen = Choose("0.0.0.0/0,::/0", address);
    CHECK(chosen.leader == address);
    CHECK(chosen.data == address);
    CHECK(chosen.told == (addresses.size() > 1));
  }
  CHECK(Choose("0.0.0.0/0,::/0", "192.0.2.1").leader == addresses.front());
}

TEST_CASE("a leader that dies before it connects is noticed long before the start's limit") {
  // Either rank 0 still sees its listener, or is so late that nobody listens any more.
  const bool dies_first = GENERATE(false, true);
  CAPTURE(dies_first);
  class DeathStore final : public Store {
   public:
    explicit DeathStore(bool dies_first) : dies_first_(dies_first) {}

    Result<Rendezvous> Join(int rank, int size, const std::string& blob,
                            Duration timeout) override {
      auto met = memory_.Join(rank, size, blob, timeout);
      if (rank == 0 && dies_first_) dead_.get_future().wait();
      if (rank != 2) return met;
      if (!dies_first_) std::this_thread::sleep_for(300ms);
      return Status(StatusCode::kAborted, "it dies");
    }
    void NoteDeath() { dead_.set_value(); }

   private:
    const bool dies_first_;
    MemoryStore memory_;
    std::promise<void> dead_;
  } store(dies_first);
  const auto joined = test::RunRanks(3, [&](int rank) {
    MeshOptions options;
    options.job_id = "job";
    options.rank = rank;
    options.size = 3;
    options.host_id = rank < 2 ? "a" : "b";
    const TimePoint begin = SteadyClock().Now();
    const Status status = Mesh::Join(store, options, Logger()).status();
    if (rank == 2) store.NoteDeath();
    return std::pair(status, SteadyClock().Now() - begin);
  });
  CHECK(joined[0].first.code() == StatusCode::kUnavailable);
  CHECK(joined[0].first.culprit_rank() == 2);
  CHECK_THAT(joined[0].first.message(), Catch::Contains("has joined but does not listen any more"));
  CHECK(joined[0].second < 20s);  // of 60
  CHECK(joined[1].first.ok());    // it has no link to the other host
}

}  // namespace hvl::net
