// What reaches a mesh from outside while it is being built: liars, noise and silence. Rank 1 is
// held back until the attack on rank 0's listener is over (or still goes on), and then must get
// through.
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/net/handshake.h"
#include "csrc/net/socket.h"
#include "tests/support/impostor.h"
#include "tests/support/log_capture.h"
#include "tests/support/mesh_ranks.h"
#include "tests/support/raw_peer.h"

namespace hvl::net {
namespace {

using test::RawPeer;

// Runs `attack(address of rank 0)` before rank 1 learns that the round is complete.
class AttackStore final : public Store {
 public:
  explicit AttackStore(std::function<void(const std::string&)> attack)
      : attack_(std::move(attack)) {}

  Result<Rendezvous> Join(int rank, int size, const std::string& blob, Duration timeout) override {
    auto met = memory_.Join(rank, size, blob, timeout);
    if (met.ok() && rank == 1) attack_(test::AddressInBlob(met->blobs[0]));
    return met;
  }

 private:
  MemoryStore memory_;
  std::function<void(const std::string&)> attack_;
};

RawPeer Visit(const std::string& address) { return RawPeer(StartConnect(address).value()); }

constexpr const char* kJob = "job";
LinkIdentity Control(int client_rank) { return {kJob, 1, Channel::kControl, client_rank, 0}; }

// Builds a mesh of two under `attack` and checks that it works. Returns what rank 0 logged.
std::vector<std::string> JoinUnder(const Secret& secret, bool tcp,
                                   std::function<void(const std::string&)> attack) {
  AttackStore store(std::move(attack));
  test::LogCapture log;
  auto meshes = test::RunRanks(2, [&](int rank) {
    MeshOptions options;
    options.rank = rank;
    options.size = 2;
    options.job_id = kJob;
    options.secret = secret;
    options.tcp_only = tcp;
    return Mesh::Join(store, options, rank == 0 ? log.logger() : Logger());
  });
  REQUIRE(meshes[0].ok());
  REQUIRE(meshes[1].ok());
  (*meshes[1])->Send(0, test::Frame("through"));
  test::RecordingReceiver receiver;
  REQUIRE(test::PollForEvents(**meshes[0], receiver, 1));
  CHECK(receiver.events[0].frame == "through");
  return log.lines();
}

}  // namespace

TEST_CASE("silent strangers do not keep a peer out", "[strangers]") {
  const bool tcp = GENERATE(false, true);
  std::vector<RawPeer> silent;
  JoinUnder(Secret(), tcp, [&](const std::string& address) {
    for (int i = 0; i < 400; ++i) silent.push_back(Visit(address));
  });
  for (RawPeer& peer : silent) CHECK(peer.ReadToEnd().empty());
}

TEST_CASE("who does not belong to a link is refused, and the mesh goes on", "[strangers]") {
  const Secret secret = Secret::Random();
  const bool tcp = GENERATE(false, true);
  const auto log = JoinUnder(secret, tcp, [&](const std::string& address) {
    CHECK_FALSE(Visit(address).Prove(Handshake::Connect(Control(1), Secret::Random())));
    for (const LinkIdentity& wrong : {
             LinkIdentity{"other", 1, Channel::kControl, 1, 0},
             LinkIdentity{kJob, 0, Channel::kControl, 1, 0},
             LinkIdentity{kJob, 1, Channel::kData, 1, 0},
             LinkIdentity{kJob, 1, Channel::kStore, 1, kStoreRank},
             LinkIdentity{kJob, 1, Channel::kControl, 1, 5},
         }) {
      CHECK_FALSE(Visit(address).Prove(Handshake::Connect(wrong, secret)));
    }
    // These know the secret, but claim a rank that has no business here. They are let go after
    // their proof.
    for (const int rank : {0, 2, -1, 1 << 30}) {
      RawPeer liar = Visit(address);
      liar.Prove(Handshake::Connect(Control(rank), secret));
      CHECK(liar.ReadToEnd().empty());
    }
  });
  CHECK_FALSE(log.empty());
  for (const std::string& line : log)
    CHECK(line.find(reinterpret_cast<const char*>(secret.key.data()), 0, 8) == std::string::npos);
}

TEST_CASE("a hello cut at any byte, and noise, disturb nobody", "[strangers]") {
  const Secret secret = Secret::Random();
  JoinUnder(secret, GENERATE(false, true), [&](const std::string& address) {
    const Handshake client = Handshake::Connect(Control(1), secret);
    const auto hello = client.opening();
    for (std::size_t cut = 0; cut < hello.size(); ++cut) {
      RawPeer peer = Visit(address);
      peer.Send({reinterpret_cast<const char*>(hello.data()), cut});
    }
    for (int i = 0; i < 50; ++i) {
      RawPeer peer = Visit(address);
      peer.Send(std::string(static_cast<std::size_t>(40 * i), static_cast<char>(i)));
    }
  });
}

TEST_CASE("a rank without the job's secret cannot join, and its peers say so in time",
          "[strangers]") {
  MemoryStore store;
  auto meshes = test::RunRanks(2, [&](int rank) {
    MeshOptions options;
    options.rank = rank;
    options.size = 2;
    options.secret.key[0] = static_cast<std::byte>(rank);
    options.timeout = std::chrono::milliseconds(200);
    return Mesh::Join(store, options, Logger());
  });
  CHECK(meshes[0].status().code() == StatusCode::kTimeout);
  CHECK(meshes[0].status().culprit_rank() == 1);
  CHECK(meshes[1].status().code() == StatusCode::kMismatch);
  CHECK(meshes[1].status().culprit_rank() == 0);
  CHECK_THAT(meshes[1].status().message(), Catch::Contains("secret"));
}

}  // namespace hvl::net
