// Mutual proof that both ends of a new connection know the job secret and mean the same link. Four
// messages of fixed size; nothing is allocated and nothing else is read before they are checked.
//
//   client -> server  hello      magic, version, channel, generation, both ranks, job id, nonce C
//   server -> client  challenge  nonce S, HMAC(secret, "server" | hello | nonce S)
//   client -> server  proof      HMAC(secret, "client" | hello | nonce S)
//   server -> client  accept     HMAC(secret, "accept" | hello | nonce S)
//
// The digests cover the whole hello and both nonces: an answer cannot be replayed, reflected to
// its sender, or used for another job, generation, channel or pair of ranks. The last message
// tells the client that the server did not give up in between, so that both agree on the outcome.
// docs/protocol.md has the byte layout.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "csrc/base/clock.h"
#include "csrc/net/secret.h"
#include "horovodlite/status.h"

namespace hvl::net {

enum class Channel : std::uint8_t { kStore = 1, kControl = 2, kData = 3 };

inline constexpr int kStoreRank = -1;  ///< stands for the store where a rank is expected
inline constexpr std::size_t kMaxJobIdBytes = 64;
inline constexpr std::size_t kHelloBytes = 128;
inline constexpr std::size_t kChallengeBytes = 64;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kAcceptBytes = 32;
/// A hand-shake takes two messages on a healthy machine; whoever needs longer is cut off.
inline constexpr Duration kHandshakeTimeout = std::chrono::seconds(3);
/// Strangers in the middle of a hand-shake, per listener, beyond the peers that are expected.
/// One more pushes out the oldest.
inline constexpr std::size_t kMaxHalfOpen = 64;

/// What both ends of a link must agree on.
struct LinkIdentity {
  std::string job_id;
  std::uint64_t generation = 0;
  Channel channel = Channel::kControl;
  int client_rank = 0;
  int server_rank = 0;
};

/// Keys of one connection for what follows its hand-shake, one for each direction; nobody else has
/// the same.
struct LinkKeys {
  Secret send, receive;
};

/// InvalidArgument when a job id does not fit into the hello.
Status CheckJobId(const std::string& job_id);

/// One end of one hand-shake. Owned by the thread that serves the connection; no IO besides
/// Advance.
class Handshake {
 public:
  static Handshake Connect(const LinkIdentity& link, const Secret& secret);
  /// Learns the client's rank from its hello; `link.client_rank` is ignored.
  static Handshake Accept(const LinkIdentity& link, const Secret& secret);

  bool done() const { return step_ == Step::kDone; }
  /// Of a server: the other end has said something.
  bool begun() const { return step_ != Step::kAwaitHello || input_bytes_ > 0; }
  /// Claimed by the hello, proven once done().
  int client_rank() const { return link_.client_rank; }
  /// Requires done(). What one end sends with, the other one receives with.
  LinkKeys Keys() const;

  /// Moves on as far as the non-blocking socket allows. OK and not done(): call again when it is
  /// readable. Unavailable: the socket failed or ended. Mismatch: the other end does not belong
  /// to this link.
  Status Advance(int socket);

  /// The same without a socket: the message that opens the connection (empty for a server), how
  /// many bytes come next, and the reply to exactly those bytes.
  std::span<const std::byte> opening() const;
  std::size_t wanted_bytes() const;
  Result<std::span<const std::byte>> Feed(std::span<const std::byte> message);

 private:
  enum class Step : std::uint8_t {
    kSendHello,
    kAwaitChallenge,
    kAwaitAccept,  // client
    kAwaitHello,
    kAwaitProof,  // server
    kDone,
  };

  Handshake(Step step, const LinkIdentity& link, const Secret& secret);
  Status CheckHello(std::span<const std::byte> hello);
  std::array<std::byte, 32> DigestOf(std::string_view label) const;

  Step step_;
  bool is_client_;
  LinkIdentity link_;
  Secret secret_;
  std::array<std::byte, kHelloBytes> hello_{};
  std::array<std::byte, 32> server_nonce_{};
  std::array<std::byte, kChallengeBytes> reply_{};
  std::array<std::byte, kHelloBytes> input_{};
  std::size_t input_bytes_ = 0;
};

}  // namespace hvl::net
