// One contract, three stores: threads of one process, and a server over Unix sockets and TCP.
#include "csrc/net/store.h"

#include <sys/socket.h>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/net/handshake.h"
#include "csrc/net/round.h"
#include "csrc/net/socket.h"
#include "csrc/net/store_protocol.h"
#include "tests/support/log_capture.h"
#include "tests/support/ranks.h"
#include "tests/support/raw_peer.h"

namespace hvl::net {
namespace {

using namespace std::chrono_literals;
using test::kHangLimit;
using test::RawPeer;
using test::RunRanks;

enum class Kind : std::uint8_t { kMemory, kUnix, kTcp };

Result<std::unique_ptr<StoreServer>> StartServer(Kind kind, const Secret& secret,
                                                 const Logger& logger = Logger()) {
  const std::string host = "127.0.0.1";
  return kind == Kind::kTcp ? StoreServer::StartTcp({&host, 1}, 0, secret, "job", logger)
                            : StoreServer::Start(secret, "job", logger);
}

// A store that lives as long as this object, and a client of it per rank.
struct StoreUnderTest {
  std::unique_ptr<StoreServer> server;  // null = in memory
  Secret secret = Secret::Random();
  MemoryStore memory;

  explicit StoreUnderTest(Kind kind) {
    if (kind == Kind::kMemory) return;
    auto started = StartServer(kind, secret);
    REQUIRE(started.ok());
    server = std::move(started).value();
  }

  Result<Rendezvous> Join(int rank, int size, const std::string& blob, Duration timeout) {
    if (server == nullptr) return memory.Join(rank, size, blob, timeout);
    auto client = OpenStore(server->address(), secret, "job");
    if (!client.ok()) return client.status();
    return (*client)->Join(rank, size, blob, timeout);
  }
};

RawPeer ConnectTo(const StoreServer& server) {
  return RawPeer(StartConnect(server.address()).value());
}

LinkIdentity StoreLink(int rank) { return {"job", 0, Channel::kStore, rank, kStoreRank}; }

}  // namespace

TEST_CASE("all ranks get all blobs and one generation, which grows", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kMemory, Kind::kUnix, Kind::kTcp));
  const int size = GENERATE(1, 2, 7);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    const auto met = RunRanks(size, [&](int rank) {
      return store.Join(rank, size, Format("blob {} of round {}", rank, round), kHangLimit);
    });
    for (const auto& result : met) {
      REQUIRE(result.ok());
      CHECK(result->generation == round);
      REQUIRE(result->blobs.size() == static_cast<std::size_t>(size));
      for (int rank = 0; rank < size; ++rank)
        CHECK(result->blobs[static_cast<std::size_t>(rank)] ==
              Format("blob {} of round {}", rank, round));
    }
  }
}

TEST_CASE("a rank that waits in vain learns who is missing and leaves", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kMemory, Kind::kUnix, Kind::kTcp));
  const auto alone = store.Join(1, 5, "blob", 30ms);
  REQUIRE_FALSE(alone.ok());
  CHECK(alone.status().code() == StatusCode::kTimeout);
  CHECK_THAT(alone.status().message(), Catch::Contains("missing: 0, 2-4."));
  const auto met = RunRanks(5, [&](int rank) { return store.Join(rank, 5, "again", kHangLimit); });
  for (const auto& result : met) {
    REQUIRE(result.ok());
    CHECK(result->blobs == std::vector<std::string>(5, "again"));
  }
}

TEST_CASE("ranks that contradict each other all fail at once, and the next round works",
          "[store]") {
  StoreUnderTest store(GENERATE(Kind::kMemory, Kind::kUnix, Kind::kTcp));
  const bool same_rank = GENERATE(true, false);
  const auto outcome = RunRanks(2, [&](int thread) {
    return same_rank ? store.Join(0, 3, "blob", kHangLimit)
                     : store.Join(thread, 3 + thread, "blob", kHangLimit);
  });
  for (const auto& result : outcome) {
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().code() == StatusCode::kMismatch);
    CHECK_THAT(result.status().message(),
               Catch::Contains(same_rank ? "two processes join as rank 0" : "HVL_SIZE"));
  }
  const auto met = RunRanks(2, [&](int rank) { return store.Join(rank, 2, "", kHangLimit); });
  CHECK(met[0].ok());
  CHECK(met[1].ok());
}

TEST_CASE("requests that no round can satisfy are refused", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kMemory, Kind::kUnix, Kind::kTcp));
  const std::vector<std::pair<int, int>> impossible = {{-1, 2}, {2, 2}, {0, 0}, {0, -3}};
  for (const auto& [rank, size] : impossible)
    CHECK(store.Join(rank, size, "", 1s).status().code() == StatusCode::kInvalidArgument);
  const std::string largest(kMaxBlobBytes, 'x');
  CHECK(store.Join(0, 1, largest, 10s)->blobs.front() == largest);
  CHECK(store.Join(0, 1, largest + "x", 1s).status().code() == StatusCode::kResourceExhausted);
}

TEST_CASE("large tables reach every rank", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kMemory, Kind::kUnix, Kind::kTcp));
  constexpr int kSize = 4;
  const auto met = RunRanks(kSize, [&](int rank) {
    return store.Join(rank, kSize, std::string(kMaxBlobBytes, static_cast<char>('a' + rank)),
                      kHangLimit);
  });
  for (const auto& result : met) {
    REQUIRE(result.ok());
    for (int rank = 0; rank < kSize; ++rank)
      CHECK(result->blobs[static_cast<std::size_t>(rank)] ==
            std::string(kMaxBlobBytes, static_cast<char>('a' + rank)));
  }
}

TEST_CASE("the address of a store is checked when it is opened", "[store]") {
  for (const char* address : {"", "unix:", "unix:@", "tcp:host", "tcp:127.0.0.1:", "127.0.0.1:80",
                              "tcp:127.0.0.1:70000", "tcp:127.0.0.1:12x"}) {
    const auto store = OpenStore(address, Secret(), "job");
    INFO(address);
    CHECK(store.status().code() == StatusCode::kInvalidArgument);
  }
  CHECK(OpenStore("unix:@x", Secret(), std::string(65, 'j')).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("a rank that is interrupted leaves the round and may come again", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kUnix, Kind::kTcp));
  int asked = 0;
  const auto impatient =
      OpenStore(store.server->address(), store.secret, "job", [&asked] { return ++asked == 3; });
  REQUIRE(impatient.ok());
  const auto joined = (*impatient)->Join(0, 2, "", kHangLimit);
  CHECK(joined.status().code() == StatusCode::kAborted);
  CHECK(asked == 3);
  const auto met = RunRanks(2, [&store](int rank) { return store.Join(rank, 2, "", kHangLimit); });
  for (const auto& result : met) CHECK(result.ok());
}

TEST_CASE("a store that is gone is reported at once", "[store]") {
  auto server = StartServer(GENERATE(Kind::kUnix, Kind::kTcp), Secret()).value();
  const std::string address = server->address();
  server.reset();
  const auto joined = OpenStore(address, Secret(), "job").value()->Join(0, 2, "", kHangLimit);
  CHECK(joined.status().code() == StatusCode::kUnavailable);
  CHECK_THAT(joined.status().message(), Catch::Contains(address));
}

TEST_CASE("a store that ends while ranks wait releases them", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kUnix, Kind::kTcp));
  std::thread waiting([&] {
    const auto joined = store.Join(0, 3, "", kHangLimit);
    CHECK(joined.status().code() == StatusCode::kUnavailable);
  });
  // Rank 1 learns from its timeouts when rank 0 has come.
  std::string missing;
  while (missing.find("missing: 2.") == std::string::npos)
    missing = store.Join(1, 3, "", 20ms).status().message();
  store.server.reset();
  waiting.join();
}

TEST_CASE("only who knows the secret and the job may join", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kUnix, Kind::kTcp));
  const auto stranger =
      OpenStore(store.server->address(), Secret::Random(), "job").value()->Join(0, 1, "", 10s);
  CHECK(stranger.status().code() == StatusCode::kMismatch);
  CHECK_THAT(stranger.status().message(), Catch::Contains("secret"));
  const auto other_job =
      OpenStore(store.server->address(), store.secret, "other").value()->Join(0, 1, "", 500ms);
  CHECK(other_job.status().code() == StatusCode::kTimeout);
  CHECK_THAT(other_job.status().message(), Catch::Contains("HVL_JOB_ID, which is 'other' in"));
  CHECK(store.Join(0, 1, "", kHangLimit)->generation == 1);
}

TEST_CASE("a rank that dies while it waits leaves the round", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kUnix, Kind::kTcp));
  RawPeer dead = ConnectTo(*store.server);
  REQUIRE(dead.Prove(Handshake::Connect(StoreLink(0), store.secret)));
  dead.Send(EncodeJoin({.rank = 0, .size = 2, .timeout = kHangLimit}, "dead"));
  dead.Close();
  const auto met = RunRanks(2, [&](int rank) { return store.Join(rank, 2, "new", kHangLimit); });
  REQUIRE(met[0].ok());
  CHECK(met[0]->blobs == std::vector<std::string>{"new", "new"});
}

TEST_CASE("a request for another rank than the proven one is refused", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kUnix, Kind::kTcp));
  RawPeer liar = ConnectTo(*store.server);
  REQUIRE(liar.Prove(Handshake::Connect(StoreLink(0), store.secret)));
  liar.Send(EncodeJoin({.rank = 1, .size = 2, .timeout = kHangLimit}, ""));
  const std::string answer = liar.ReadToEnd();
  REQUIRE(answer.size() > kAnswerHeaderBytes);
  const auto header =
      DecodeAnswerHeader(std::as_bytes(std::span(answer)).first<kAnswerHeaderBytes>());
  REQUIRE(header.ok());
  CHECK(header->code == StatusCode::kInternal);
}

TEST_CASE("requests cut at every byte and nonsense leave the store unharmed", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kUnix, Kind::kTcp));
  const std::string request = EncodeJoin({.rank = 0, .size = 2, .timeout = 5s}, "blob");
  for (std::size_t cut = 0; cut < request.size(); ++cut) {
    RawPeer peer = ConnectTo(*store.server);
    REQUIRE(peer.Prove(Handshake::Connect(StoreLink(0), store.secret)));
    peer.Send(std::string_view(request).substr(0, cut));
    peer.Close();
  }
  for (int i = 0; i < 64; ++i) {
    RawPeer peer = ConnectTo(*store.server);
    peer.Send(std::string(static_cast<std::size_t>(i) * 16, static_cast<char>(i * 37)));
    if (i % 2 == 0) peer.Close();
  }
  CHECK(store.Join(0, 1, "fine", kHangLimit)->blobs.front() == "fine");
}

TEST_CASE("hundreds of connections that say nothing do not keep a rank out", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kUnix, Kind::kTcp));
  std::vector<RawPeer> silent;
  for (int i = 0; i < 800; ++i) {
    auto socket = StartConnect(store.server->address());
    REQUIRE(socket.ok());
    if (socket->valid()) silent.emplace_back(std::move(*socket));
  }
  const auto met = RunRanks(2, [&](int rank) { return store.Join(rank, 2, "", kHangLimit); });
  CHECK(met[0].ok());
  CHECK(met[1].ok());
  // Those that are left are cut off at the deadline of the hand-shake.
  for (RawPeer& peer : silent) CHECK(peer.ReadToEnd().empty());
}

TEST_CASE("what one connection proved is worth nothing on another one", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kUnix, Kind::kTcp));
  Handshake honest = Handshake::Connect(StoreLink(0), store.secret);
  std::string said(reinterpret_cast<const char*>(honest.opening().data()), kHelloBytes);
  RawPeer first = ConnectTo(*store.server);
  first.Send(said);
  const std::string challenge = first.Read(kChallengeBytes);
  const auto proof = honest.Feed(std::as_bytes(std::span(challenge)));
  REQUIRE(proof.ok());
  said.append(reinterpret_cast<const char*>(proof->data()), proof->size());
  first.Send(std::string_view(said).substr(kHelloBytes));
  CHECK(first.Read(kAcceptBytes).size() == kAcceptBytes);
  RawPeer replay = ConnectTo(*store.server);
  replay.Send(said + EncodeJoin({.rank = 0, .size = 1, .timeout = 5s}, "replayed"));
  CHECK(replay.ReadToEnd().size() == kChallengeBytes);  // and no answer to the proof
  CHECK(store.Join(0, 1, "honest", kHangLimit)->generation == 1);
}

TEST_CASE("hand-shakes cut at every byte leave the store unharmed", "[store]") {
  StoreUnderTest store(GENERATE(Kind::kUnix, Kind::kTcp));
  const Handshake client = Handshake::Connect(StoreLink(0), store.secret);
  const auto hello = client.opening();
  for (std::size_t cut = 0; cut < hello.size(); ++cut)
    ConnectTo(*store.server).Send({reinterpret_cast<const char*>(hello.data()), cut});
  CHECK(store.Join(0, 1, "fine", kHangLimit)->blobs.front() == "fine");
}

TEST_CASE("a server on TCP listens on the chosen addresses only, all with one port", "[store]") {
  const std::vector<std::string> hosts = {"127.0.0.1", "127.0.0.2", "127.0.0.1"};
  auto server = StoreServer::StartTcp(hosts, 0, Secret(), "job", Logger()).value();
  REQUIRE(server->addresses().size() == 2);
  const HostPort first = ParseTcp(server->address()).value();
  CHECK(server->addresses()[1] == TcpText({"127.0.0.2", first.port}));
  for (const std::string& address : server->addresses())
    CHECK(OpenStore(address, Secret(), "job").value()->Join(0, 1, "", kHangLimit).ok());
  const auto elsewhere = OpenStore(TcpText({"127.0.0.3", first.port}), Secret(), "job");
  CHECK((*elsewhere)->Join(0, 1, "", kHangLimit).status().code() == StatusCode::kUnavailable);
  // The port is taken while the server lives, and free as soon as it has gone.
  CHECK(StoreServer::StartTcp(hosts, first.port, Secret(), "job", Logger()).value() == nullptr);
  server.reset();
  CHECK(StoreServer::StartTcp(hosts, first.port, Secret(), "job", Logger()).value() != nullptr);
  const std::string foreign = "198.51.100.1";
  const auto refused = StoreServer::StartTcp({&foreign, 1}, 0, Secret(), "job", Logger());
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK_THAT(refused.status().message(), Catch::Contains("'198.51.100.1'"));
}

TEST_CASE("a store is found by its name, and tells which address leads to it", "[store]") {
  StoreUnderTest store(Kind::kTcp);
  const HostPort place = ParseTcp(store.server->address()).value();
  const auto client = OpenStore(TcpText({"localhost", place.port}), store.secret, "job").value();
  CHECK(client->Join(0, 1, "", kHangLimit).ok());
  CHECK_THAT(client->LocalHost(SteadyClock().Now() + kHangLimit).value(),
             Catch::Equals("127.0.0.1") || Catch::Equals("::1"));
  const auto nameless = OpenStore("tcp:no-such-host.invalid:9", Secret(), "job").value();
  const Status unknown = nameless->Join(0, 1, "", 300ms).status();
  CHECK(unknown.code() == StatusCode::kTimeout);
  CHECK_THAT(unknown.message(), Catch::Contains("no-such-host.invalid"));
}

TEST_CASE("who expects a server a little later waits for it", "[store]") {
  const std::string host = "127.0.0.1";
  auto server = StoreServer::StartTcp({&host, 1}, 0, Secret(), "job", Logger()).value();
  const HostPort place = ParseTcp(server->address()).value();
  server.reset();
  auto client = OpenStore(TcpText(place), Secret(), "job", {}, WhenAbsent::kWait).value();
  CHECK(client->Join(0, 1, "", 50ms).status().code() == StatusCode::kTimeout);
  std::thread late([&] {
    std::unique_ptr<StoreServer> started;
    while (started == nullptr) {
      started = StoreServer::StartTcp({&host, 1}, place.port, Secret(), "job", Logger()).value();
    }
    CHECK(OpenStore(TcpText(place), Secret(), "job").value()->Join(1, 2, "", kHangLimit).ok());
    started->Finish();
  });
  CHECK(client->Join(0, 2, "", kHangLimit).ok());
  late.join();
}

TEST_CASE("refused connections are logged once, without the secret", "[store]") {
  test::LogCapture log;
  const Secret secret = Secret::Random();
  auto server = StartServer(GENERATE(Kind::kUnix, Kind::kTcp), secret, log.logger()).value();
  for (int i = 0; i < 5; ++i)
    CHECK_FALSE(
        OpenStore(server->address(), Secret::Random(), "job").value()->Join(0, 1, "", 1s).ok());
  for (int i = 0; i < 5; ++i) {
    RawPeer peer = ConnectTo(*server);
    peer.Send(std::string(kHelloBytes, 'x'));
    CHECK(peer.ReadToEnd().empty());
  }
  server.reset();
  CHECK(log.lines().size() == 1);
}

}  // namespace hvl::net
