// The hand-shake against liars, first as two state machines without sockets.
#include "csrc/net/handshake.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "csrc/net/fd.h"
#include "tests/support/raw_peer.h"

namespace hvl::net {
namespace {

using Bytes = std::vector<std::byte>;

LinkIdentity Link() { return {"job", 3, Channel::kControl, 2, 1}; }

Bytes Copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

// What went over the wire and how it ended.
struct Outcome {
  std::vector<Bytes> messages;  // hello, challenge, proof, accept
  bool client_done = false;
  bool server_done = false;
  std::string error;
};

// Lets both sides talk; `tamper(index, message)` may change each message on its way.
Outcome Talk(Handshake client, Handshake server,
             const std::function<void(std::size_t, Bytes&)>& tamper = {}) {
  Outcome outcome;
  Bytes message = Copy(client.opening());
  for (std::size_t index = 0; !message.empty(); ++index) {
    if (tamper) tamper(index, message);
    outcome.messages.push_back(message);
    Handshake& reader = index % 2 == 0 ? server : client;
    const auto reply = reader.Feed(message);
    if (!reply.ok()) {
      outcome.error = reply.status().message();
      break;
    }
    message = Copy(*reply);
  }
  outcome.client_done = client.done();
  outcome.server_done = server.done();
  return outcome;
}

}  // namespace

TEST_CASE("both ends of a link come to agree", "[handshake]") {
  const Secret secret = Secret::Random();
  LinkIdentity listening = Link();
  listening.client_rank = kStoreRank;
  Handshake server = Handshake::Accept(listening, secret);
  const Outcome outcome = Talk(Handshake::Connect(Link(), secret), server);
  CHECK(outcome.error.empty());
  CHECK(outcome.client_done);
  CHECK(outcome.server_done);
  REQUIRE(outcome.messages.size() == 4);
  CHECK(outcome.messages[0].size() == kHelloBytes);
  CHECK(outcome.messages[1].size() == kChallengeBytes);
  CHECK(outcome.messages[2].size() == kProofBytes);
  CHECK(outcome.messages[3].size() == kAcceptBytes);
}

TEST_CASE("a difference in anything that the link is bound to is refused", "[handshake]") {
  const Secret secret = Secret::Random();
  LinkIdentity other = Link();
  std::string reason;
  SECTION("job") {
    other.job_id = "jo";
    reason = "another job: HVL_JOB_ID is 'jo' in the environment of rank ";
  }
  SECTION("generation") {
    other.generation = 2;
    reason = "generation 2, this side is in 3";
  }
  SECTION("channel") {
    other.channel = Channel::kData;
    reason = "wants a data channel, this is a control channel";
  }
  SECTION("rank") {
    other.server_rank = 0;
    reason = "looks for rank 0, this is rank 1";
  }
  const Outcome outcome =
      Talk(Handshake::Connect(other, secret), Handshake::Accept(Link(), secret));
  CHECK_FALSE(outcome.client_done);
  CHECK_FALSE(outcome.server_done);
  CHECK(outcome.messages.size() == 1);
  CHECK_THAT(outcome.error, Catch::Contains(reason));
}

TEST_CASE("each side refuses the other when the secrets differ", "[handshake]") {
  const Secret secret = Secret::Random();
  Secret near_miss = secret;
  near_miss.key[31] ^= std::byte{1};
  const Outcome outcome =
      Talk(Handshake::Connect(Link(), near_miss), Handshake::Accept(Link(), secret));
  CHECK_FALSE(outcome.client_done);
  CHECK_FALSE(outcome.server_done);
  CHECK_THAT(outcome.error, Catch::Contains("secret"));

  // A client that goes on all the same does not get in.
  Handshake server = Handshake::Accept(Link(), secret);
  const Handshake client = Handshake::Connect(Link(), near_miss);
  REQUIRE(server.Feed(client.opening()).ok());
  CHECK_FALSE(server.Feed(Bytes(kProofBytes)).ok());
  CHECK_FALSE(server.done());
}

TEST_CASE("a change of any bit of any message is noticed", "[handshake]") {
  const Secret secret = Secret::Random();
  const std::size_t which = GENERATE(0U, 1U, 2U, 3U);
  const std::size_t sizes[] = {kHelloBytes, kChallengeBytes, kProofBytes, kAcceptBytes};
  for (std::size_t bit = 0; bit < 8 * sizes[which]; ++bit) {
    const Outcome outcome =
        Talk(Handshake::Connect(Link(), secret), Handshake::Accept(Link(), secret),
             [which, bit](std::size_t index, Bytes& message) {
               if (index == which) message[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
             });
    INFO("message " << which << ", bit " << bit);
    REQUIRE_FALSE(outcome.client_done);
    // The server has finished when only its last message was changed.
    REQUIRE(outcome.server_done == (which == 3));
  }
}

TEST_CASE("a recorded conversation opens nothing", "[handshake]") {
  const Secret secret = Secret::Random();
  const Outcome recorded =
      Talk(Handshake::Connect(Link(), secret), Handshake::Accept(Link(), secret));
  REQUIRE(recorded.server_done);

  Handshake server = Handshake::Accept(Link(), secret);
  REQUIRE(server.Feed(recorded.messages[0]).ok());
  CHECK_FALSE(server.Feed(recorded.messages[2]).ok());
  CHECK_FALSE(server.done());

  Handshake client = Handshake::Connect(Link(), secret);
  CHECK_FALSE(client.Feed(recorded.messages[1]).ok());
  CHECK_FALSE(client.done());
}

TEST_CASE("a side's own words cannot be turned against it", "[handshake]") {
  const Secret secret = Secret::Random();
  Handshake server = Handshake::Accept(Link(), secret);
  const Handshake client = Handshake::Connect(Link(), secret);
  const auto challenge = server.Feed(client.opening());
  REQUIRE(challenge.ok());
  // The digest that the server itself has just computed is not a client's proof.
  CHECK_FALSE(server.Feed(Copy(challenge->subspan(32))).ok());
}

TEST_CASE("over a socket, bytes may come one by one, and an end at any byte is an error",
          "[handshake]") {
  const Secret secret = Secret::Random();
  for (std::size_t cut = 0; cut <= kHelloBytes + kProofBytes; ++cut) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    const UniqueFd server_end(ends[0]);
    test::RawPeer peer{UniqueFd(ends[1])};
    Handshake server = Handshake::Accept(Link(), secret);
    Handshake client = Handshake::Connect(Link(), secret);
    Bytes outgoing = Copy(client.opening());
    for (std::size_t sent = 0; sent < cut; ++sent) {
      if (sent == kHelloBytes) {
        const std::string challenge = peer.Read(kChallengeBytes);
        const auto proof = client.Feed(std::as_bytes(std::span(challenge)));
        REQUIRE(proof.ok());
        outgoing.insert(outgoing.end(), proof->begin(), proof->end());
      }
      REQUIRE(peer.Send({reinterpret_cast<const char*>(&outgoing[sent]), 1}));
      REQUIRE(server.Advance(server_end.get()).ok());
    }
    if (cut == kHelloBytes + kProofBytes) {
      CHECK(server.done());
      CHECK(server.client_rank() == Link().client_rank);
      CHECK(peer.Read(kAcceptBytes).size() == kAcceptBytes);
      continue;
    }
    peer.Close();
    CHECK(server.Advance(server_end.get()).code() == StatusCode::kUnavailable);
    CHECK_FALSE(server.done());
  }
}

}  // namespace hvl::net
