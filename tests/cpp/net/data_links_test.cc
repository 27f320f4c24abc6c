// Data connections: made on demand between the right ranks, and what happens when one cannot be
// made.
#include "csrc/net/data_links.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/str.h"
#include "tests/support/data_ranks.h"
#include "tests/support/log_capture.h"
#include "tests/support/mesh_ranks.h"
#include "tests/support/raw_peer.h"

namespace hvl::net {
namespace {

using Catch::Contains;
using test::DataRanks;
using test::kHangLimit;
using test::MakeDataRanks;
using test::RunRanks;
using std::chrono_literals::operator""ms;

class Event {
 public:
  Event() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  int fd() const { return fd_.get(); }
  void Ring() {
    const std::uint64_t one = 1;
    REQUIRE(::write(fd(), &one, sizeof one) == sizeof one);
  }

 private:
  UniqueFd fd_;
};

std::vector<int> AllBut(int rank, int size) {
  std::vector<int> others;
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) others.push_back(peer);
  return others;
}

// What each rank said to each other one has reached that one.
bool SpeaksTo(const DataLinks& from, const DataLinks& to) {
  const std::string said = Format("{}>{}", from.rank(), to.rank());
  std::string heard(said.size(), ' ');
  return ::send(from.socket(to.rank()), said.data(), said.size(), 0) == std::ssize(said) &&
         ::recv(to.socket(from.rank()), heard.data(), heard.size(), MSG_WAITALL) ==
             std::ssize(heard) &&
         heard == said;
}

}  // namespace

TEST_CASE("data connections join the right ranks, once they are asked for") {
  constexpr int kSize = 5;
  const DataRanks links = MakeDataRanks(kSize);
  const Event never;
  for (const auto& own : links) CHECK(own->connected() == 0);
  const auto statuses = RunRanks(kSize, [&](int rank) {
    return links[static_cast<std::size_t>(rank)]->Connect(AllBut(rank, kSize), never.fd());
  });
  for (const Status& status : statuses) CHECK(status == Status::Ok());
  for (const auto& own : links) {
    CHECK(own->connected() == kSize - 1);
    CHECK(own->socket(own->rank()) == -1);
    for (const auto& peer : links) {
      if (own->rank() == peer->rank()) continue;
      CHECK(SpeaksTo(*own, *peer));
      const int socket = own->socket(peer->rank());
      CHECK((::fcntl(socket, F_GETFL) & O_NONBLOCK) != 0);
      CHECK((::fcntl(socket, F_GETFD) & FD_CLOEXEC) != 0);
    }
  }
}

TEST_CASE("a mesh gives its ranks data links of its job and generation") {
  auto meshes = test::JoinRanks(3);
  REQUIRE(meshes.ok());
  const Event never;
  std::vector<std::unique_ptr<DataLinks>> links;
  for (const auto& mesh : *meshes) links.push_back(mesh->TakeDataLinks());
  meshes->clear();  // they need it no longer
  const auto statuses = RunRanks(3, [&](int rank) {
    return links[static_cast<std::size_t>(rank)]->Connect(AllBut(rank, 3), never.fd());
  });
  for (const Status& status : statuses) CHECK(status == Status::Ok());
  CHECK(SpeaksTo(*links[2], *links[0]));
}

TEST_CASE("only the pairs that are asked for are connected") {
  constexpr int kSize = 6;
  const DataRanks links = MakeDataRanks(kSize);
  const Event never;
  const auto around = [&links, &never](int rank) {
    const std::vector<int> neighbours = {(rank + 1) % kSize, (rank + kSize - 1) % kSize};
    return links[static_cast<std::size_t>(rank)]->Connect(neighbours, never.fd());
  };
  for (int round = 0; round < 2; ++round) {
    for (const Status& status : RunRanks(kSize, around)) CHECK(status == Status::Ok());
    for (const auto& own : links) CHECK(own->connected() == 2);
  }
}

TEST_CASE("a rank that comes early waits for its turn, and is not forgotten") {
  const DataRanks links = MakeDataRanks(3);
  const Event never;
  auto early = std::async(std::launch::async,
                          [&] { return links[1]->Connect(std::vector<int>{0}, never.fd()); });
  auto expected = std::async(std::launch::async,
                             [&] { return links[2]->Connect(std::vector<int>{0}, never.fd()); });
  CHECK(links[0]->Connect(std::vector<int>{2}, never.fd()) == Status::Ok());
  CHECK(expected.get() == Status::Ok());
  CHECK(links[0]->Connect(std::vector<int>{1}, never.fd()) == Status::Ok());
  CHECK(early.get() == Status::Ok());
  CHECK(SpeaksTo(*links[1], *links[0]));
  CHECK(SpeaksTo(*links[0], *links[2]));
}

TEST_CASE("the stop event ends the wait of whoever connects and of whoever accepts") {
  const std::size_t rank = GENERATE(0U, 1U);
  const DataRanks links = MakeDataRanks(2);
  Event stop;
  auto waiting = std::async(std::launch::async, [&] {
    return links[rank]->Connect(std::vector<int>{1 - static_cast<int>(rank)}, stop.fd());
  });
  stop.Ring();
  REQUIRE(waiting.wait_for(kHangLimit) == std::future_status::ready);
  CHECK(waiting.get().code() == StatusCode::kAborted);
}

TEST_CASE("a deadline that passes names the ranks that did not connect") {
  const DataRanks links = MakeDataRanks(4, 30ms);
  const Event never;
  const Status accepting = links[1]->Connect(std::vector<int>{3, 2}, never.fd());
  CHECK(accepting.code() == StatusCode::kTimeout);
  CHECK(accepting.culprit_rank() == 2);
  CHECK_THAT(accepting.message(), Contains("rank 1 got no data connection with ranks 2, 3") &&
                                      Contains("firewall") && Contains("HVL_START_TIMEOUT"));
  const Status connecting = links[1]->Connect(std::vector<int>{0}, never.fd());
  CHECK(connecting.code() == StatusCode::kTimeout);
  CHECK(connecting.culprit_rank() == 0);
}

TEST_CASE("a peer that does not listen any more is named at once") {
  DataRanks links = MakeDataRanks(2);
  links[0].reset();
  const Event never;
  const Status status = links[1]->Connect(std::vector<int>{0}, never.fd());
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(status.culprit_rank() == 0);
  CHECK_THAT(status.message(), Contains("rank 1 cannot open a data connection to rank 0"));
}

TEST_CASE("a rank of another job is refused, and says so; the others are not disturbed") {
  const Secret secret = Secret::Random();
  test::LogCapture log;
  const DataRanks links =
      MakeDataRanks(3, kHangLimit, {secret, Secret::Random(), secret}, log.logger());
  const Event never;
  const auto statuses = RunRanks(2, [&](int index) -> Status {
    if (index == 0) return links[0]->Connect(std::vector<int>{2}, never.fd());
    const Status wrong = links[1]->Connect(std::vector<int>{0}, never.fd());
    const Status right = links[2]->Connect(std::vector<int>{0}, never.fd());
    return right.ok() ? wrong : right;
  });
  CHECK(statuses[0] == Status::Ok());
  CHECK(statuses[1].code() == StatusCode::kMismatch);
  CHECK(statuses[1].culprit_rank() == 0);
  CHECK(links[0]->connected() == 1);
}

TEST_CASE("strangers at a data listener get nothing and keep nobody from connecting") {
  Listener listener = Listen(Transport::kTcp).value();
  const std::string address = listener.address;
  const Secret secret = Secret::Random();
  test::LogCapture log;
  DataLinks accepting({.rank = 0,
                       .job_id = "job",
                       .generation = 7,
                       .secret = secret,
                       .listener = std::move(listener),
                       .addresses = {address, "tcp:127.0.0.1:9"},
                       .timeout = kHangLimit},
                      log.logger());
  const auto visit = [&address] { return test::RawPeer(StartConnect(address).value()); };
  std::vector<test::RawPeer> silent;
  for (std::size_t i = 0; i < kMaxHalfOpen + 40; ++i) silent.push_back(visit());
  test::RawPeer loud = visit();
  REQUIRE(loud.Send(std::string(kHelloBytes, 'x')));
  test::RawPeer stale = visit();  // knows the secret, of an earlier generation
  test::RawPeer peer = visit();
  const LinkIdentity identity{.job_id = "job",
                              .generation = 7,
                              .channel = Channel::kData,
                              .client_rank = 1,
                              .server_rank = 0};
  LinkIdentity old = identity;
  old.generation = 6;
  auto proofs = std::async(std::launch::async, [&] {
    const bool old_one = stale.Prove(Handshake::Connect(old, secret));
    const bool right_one = peer.Prove(Handshake::Connect(identity, secret));
    return std::vector<bool>{old_one, right_one};
  });
  const Event never;
  CHECK(accepting.Connect(std::vector<int>{1}, never.fd()) == Status::Ok());
  CHECK(proofs.get() == std::vector<bool>{false, true});
  CHECK(loud.ReadToEnd().empty());
  CHECK(log.Contains("refused a data connection"));
}

TEST_CASE("a rank that leaves in the middle of the hand-shake is no news") {
  test::LogCapture log;
  Listener listener = Listen(Transport::kTcp).value();
  const std::string address = listener.address;
  const Event never;
  DataLinks accepting({.rank = 0,
                       .job_id = "job",
                       .generation = 1,
                       .secret = Secret::Random(),
                       .listener = std::move(listener),
                       .addresses = {address, "tcp:127.0.0.1:9"},
                       .timeout = std::chrono::milliseconds(100)},
                      log.logger());
  {
    test::RawPeer leaving(StartConnect(address).value());
    REQUIRE(leaving.Send(std::string(kHelloBytes / 2, 'x')));
  }
  CHECK(accepting.Connect(std::vector<int>{1}, never.fd()).code() == StatusCode::kTimeout);
  CHECK_FALSE(log.Contains("refused"));
}

TEST_CASE("a forked child that goes leaves the connections of its parent alone") {
  const DataRanks links = MakeDataRanks(2);
  const Event never;
  const auto statuses = RunRanks(2, [&](int rank) {
    return links[static_cast<std::size_t>(rank)]->Connect(AllBut(rank, 2), never.fd());
  });
  for (const Status& status : statuses) REQUIRE(status.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    auto copy = std::unique_ptr<DataLinks>(links[0].get());
    copy.reset();
    ::_exit(0);
  }
  int end = 0;
  REQUIRE(::waitpid(child, &end, 0) == child);
  CHECK(SpeaksTo(*links[0], *links[1]));
}

}  // namespace hvl::net
