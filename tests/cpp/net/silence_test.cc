// When a host is taken for dead while the links are being made, and when not.
#include "csrc/net/silence.h"

#include <sys/socket.h>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "csrc/net/hosts.h"
#include "csrc/net/mesh.h"
#include "csrc/net/rank_card.h"
#include "csrc/net/socket.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::net {
namespace {

using namespace std::chrono_literals;

// A place that answers nothing, as a host whose cable is pulled: its queue of connections is full,
// and the kernel drops what comes.
class BlackHole {
 public:
  BlackHole() : listener_(Listen(Transport::kTcp).value()) {
    REQUIRE(::listen(listener_.socket.get(), 0) == 0);
    for (UniqueFd& visitor : visitors_) visitor = StartConnect(listener_.address).value();
  }
  const std::string& address() const { return listener_.address; }

 private:
  Listener listener_;
  std::array<UniqueFd, 4> visitors_;
};

// Two hosts with a rank each, of which the `absent` one only leaves its card.
Status JoinWithout(int absent, const std::string& its_address, MeshOptions options) {
  class TcpStore final : public Store {
   public:
    Result<Rendezvous> Join(int rank, int size, const std::string& blob,
                            Duration timeout) override {
      return memory.Join(rank, size, blob, timeout);
    }
    Result<std::string> LocalHost(TimePoint) override { return std::string("127.0.0.1"); }
    MemoryStore memory;
  } store;
  const RankCard card{.address = "unix:@nobody",
                      .leader_address = its_address,
                      .data_address = its_address,
                      .pid = 1,
                      .pid_scope = "elsewhere",
                      .host_id = "elsewhere",
                      .host_name = "elsewhere",
                      .blob = ""};
  return test::RunRanks(2, [&](int rank) {
    if (rank == absent) return store.Join(rank, 2, EncodeCard(card), 10s).status();
    options.job_id = "job";
    options.rank = rank;
    options.size = 2;
    options.host_id = "here";
    return Mesh::Join(store, options, Logger()).status();
  })[static_cast<std::size_t>(1 - absent)];
}

TEST_CASE("a host is given up after several attempts that nothing answers, not before the limit",
          "[silence]") {
  Unanswered unanswered(2s);
  TimePoint now = TimePoint{} + 1h;
  CHECK(unanswered.attempt_end() == TimePoint::max());
  for (int attempt = 0; attempt < 4; ++attempt) {
    CHECK_FALSE(unanswered.TooLong(now));
    unanswered.Ask(now);
    CHECK(unanswered.attempt_end() == now + 500ms);
    now += 500ms;
  }
  CHECK(unanswered.TooLong(now));
  unanswered.Answered();
  CHECK_FALSE(unanswered.TooLong(now));
  CHECK_FALSE(unanswered.asking());
}

TEST_CASE("neither a long pause nor quick failures alone are silence", "[silence]") {
  Unanswered paused(2s), hasty(2s), patient(0s);
  const TimePoint now = TimePoint{} + 1h;
  paused.Ask(now);
  CHECK_FALSE(paused.TooLong(now + 100s));
  for (int attempt = 0; attempt < 100; ++attempt) {
    hasty.Ask(now + attempt * 1ms);
    patient.Ask(now);
  }
  CHECK_FALSE(hasty.TooLong(now + 100ms));
  CHECK(hasty.TooLong(now + 2s));
  CHECK_FALSE(patient.TooLong(now + 100h));
  CHECK(patient.attempt_end() == TimePoint::max());
}

TEST_CASE("a host that answers nothing is lost long before the start's limit", "[silence]") {
  const BlackHole hole;
  const int absent = GENERATE(0, 1);  // whom the other one dials, and who would dial it
  CAPTURE(absent);
  const TimePoint begin = SteadyClock().Now();
  const Status status = JoinWithout(absent, hole.address(), {});
  CAPTURE(status.ToString());
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(status.culprit_rank() == absent);
  CHECK_THAT(status.message(), Catch::Contains("no sign of life for 2 s"));
  CHECK(SteadyClock().Now() - begin > 1900ms);
  CHECK(SteadyClock().Now() - begin < 20s);  // of 60
}

TEST_CASE("a rank that is stopped or busy is waited for, as its host answers for it", "[silence]") {
  const int absent = GENERATE(0, 1);
  CAPTURE(absent);
  const Listener nobody_serves = Listen(Transport::kTcp).value();
  MeshOptions options;
  options.timeout = 1s;
  options.silence_limit = 200ms;
  const Status status = JoinWithout(absent, nobody_serves.address, options);
  CHECK(status.code() == StatusCode::kTimeout);
  CHECK_THAT(status.message(), Catch::Contains("could not connect in time"));
}

TEST_CASE("without a limit of silence a host is tried for as long as there is time", "[silence]") {
  const BlackHole hole;
  MeshOptions options;
  options.timeout = 500ms;
  options.silence_limit = 0s;
  CHECK(JoinWithout(0, hole.address(), options).code() == StatusCode::kTimeout);
}

}  // namespace
}  // namespace hvl::net
