#include "csrc/net/handshake.h"

#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <string_view>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/hmac.h"
#include "csrc/net/socket.h"

namespace hvl::net {
namespace {

constexpr std::uint32_t kMagic = 0x314C5648;  // "HVL1" in memory order
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kNonceBytes = 32;
constexpr std::string_view kServerLabel = "horovodlite server";
constexpr std::string_view kClientLabel = "horovodlite client";
constexpr std::string_view kAcceptLabel = "horovodlite accept";
constexpr std::string_view kClientKeyLabel = "horovodlite client key";
constexpr std::string_view kServerKeyLabel = "horovodlite server key";

// Everything of the hello but the nonce, which is its last field.
std::string EncodeHello(const LinkIdentity& link) {
  ByteWriter out;
  out.Integer(kMagic);
  out.Integer(kVersion);
  out.Integer(static_cast<std::uint8_t>(link.channel));
  out.Integer(static_cast<std::uint8_t>(link.job_id.size()));
  out.Integer(link.generation);
  out.Integer(static_cast<std::uint32_t>(link.client_rank));
  out.Integer(static_cast<std::uint32_t>(link.server_rank));
  out.Raw(link.job_id);
  out.PadTo(kHelloBytes - kNonceBytes);
  return out.Take();
}

Status Reject(std::string_view what) {
  return {StatusCode::kMismatch, Format("hand-shake refused: {}", what)};
}

/// A job id in quotes; a stranger may have put anything into it.
std::string Quoted(std::string_view job_id) {
  std::string text = "'";
  for (const char c : job_id) text += c >= ' ' && c <= '~' ? c : '?';
  return text + "'";
}

std::string_view ChannelName(Channel channel) {
  switch (channel) {
    case Channel::kStore:
      return "store";
    case Channel::kControl:
      return "control";
    case Channel::kData:
      return "data";
  }
  return "unknown";
}

}  // namespace

Status CheckJobId(const std::string& job_id) {
  if (job_id.size() <= kMaxJobIdBytes) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          Format("the job id has {} bytes; at most {} are allowed: shorten HVL_JOB_ID",
                 job_id.size(), kMaxJobIdBytes)};
}

Handshake::Handshake(Step step, const LinkIdentity& link, const Secret& secret)
    : step_(step), is_client_(step == Step::kSendHello), link_(link), secret_(secret) {
  HVL_CHECK(link.job_id.size() <= kMaxJobIdBytes, "job id was not checked");
}

Handshake Handshake::Connect(const LinkIdentity& link, const Secret& secret) {
  Handshake handshake(Step::kSendHello, link, secret);
  const std::string fields = EncodeHello(link);
  std::ranges::copy(AsBytes(fields), handshake.hello_.begin());
  FillRandom(std::span(handshake.hello_).last(kNonceBytes));
  return handshake;
}

Handshake Handshake::Accept(const LinkIdentity& link, const Secret& secret) {
  return {Step::kAwaitHello, link, secret};
}

std::span<const std::byte> Handshake::opening() const {
  return step_ == Step::kSendHello ? std::span<const std::byte>(hello_)
                                   : std::span<const std::byte>();
}

std::size_t Handshake::wanted_bytes() const {
  switch (step_) {
    case Step::kSendHello:
    case Step::kAwaitChallenge:
      return kChallengeBytes;
    case Step::kAwaitHello:
      return kHelloBytes;
    case Step::kAwaitProof:
      return kProofBytes;
    case Step::kAwaitAccept:
      return kAcceptBytes;
    case Step::kDone:
      return 0;
  }
  return 0;
}

Digest Handshake::DigestOf(std::string_view label) const {
  ByteWriter transcript;
  transcript.Text(label);
  for (const auto part :
       {std::span<const std::byte>(hello_), std::span<const std::byte>(server_nonce_)})
    transcript.Raw({reinterpret_cast<const char*>(part.data()), part.size()});
  return HmacSha256(secret_, AsBytes(transcript.str()));
}

Status Handshake::CheckHello(std::span<const std::byte> hello) {
  ByteReader in(hello);
  if (in.Integer<std::uint32_t>() != kMagic) return Reject("not a horovodlite connection");
  const auto version = in.Integer<std::uint16_t>();
  if (version != kVersion)
    return Reject(Format("protocol version {}, this side speaks {}", version, kVersion));
  const auto channel = static_cast<Channel>(in.Integer<std::uint8_t>());
  const std::size_t job_id_bytes = in.Integer<std::uint8_t>();
  const auto generation = in.Integer<std::uint64_t>();
  const int client_rank = static_cast<int>(in.Integer<std::uint32_t>());
  const int server_rank = static_cast<int>(in.Integer<std::uint32_t>());
  const std::string_view job_id = in.Raw(std::min(job_id_bytes, kMaxJobIdBytes));
  if (job_id != link_.job_id) {
    return Reject(
        Format("it belongs to another job: HVL_JOB_ID is {} in the environment of rank {} and {} "
               "here. Let hvlrun set HVL_JOB_ID, HVL_STORE and HVL_SECRET_FD",
               Quoted(job_id), client_rank, Quoted(link_.job_id)));
  }
  if (channel != link_.channel)
    return Reject(Format("it wants a {} channel, this is a {} channel", ChannelName(channel),
                         ChannelName(link_.channel)));
  if (generation != link_.generation)
    return Reject(Format("generation {}, this side is in {}", generation, link_.generation));
  if (server_rank != link_.server_rank)
    return Reject(Format("it looks for rank {}, this is rank {}", server_rank, link_.server_rank));
  // The fields must be the only encoding of what they mean: no room for stray bytes.
  link_.client_rank = client_rank;
  const std::string expected = EncodeHello(link_);
  if (!std::ranges::equal(AsBytes(expected), hello.first(expected.size())))
    return Reject("malformed hello");
  return Status::Ok();
}

Result<std::span<const std::byte>> Handshake::Feed(std::span<const std::byte> message) {
  HVL_CHECK(message.size() == wanted_bytes() && !done(), "hand-shake message of a wrong size");
  switch (step_) {
    case Step::kAwaitHello: {
      HVL_RETURN_IF_ERROR(CheckHello(message));
      std::ranges::copy(message, hello_.begin());
      FillRandom(server_nonce_);
      std::ranges::copy(server_nonce_, reply_.begin());
      std::ranges::copy(DigestOf(kServerLabel), reply_.begin() + kNonceBytes);
      step_ = Step::kAwaitProof;
      return std::span<const std::byte>(reply_);
    }
    case Step::kSendHello:
    case Step::kAwaitChallenge: {
      std::ranges::copy(message.first(kNonceBytes), server_nonce_.begin());
      if (!DigestsEqual(message.subspan(kNonceBytes), DigestOf(kServerLabel)))
        return Reject("the other side does not know this job's secret");
      std::ranges::copy(DigestOf(kClientLabel), reply_.begin());
      step_ = Step::kAwaitAccept;
      return std::span<const std::byte>(reply_).first(kProofBytes);
    }
    case Step::kAwaitProof: {
      if (!DigestsEqual(message, DigestOf(kClientLabel)))
        return Reject("the other side does not know this job's secret");
      std::ranges::copy(DigestOf(kAcceptLabel), reply_.begin());
      step_ = Step::kDone;
      return std::span<const std::byte>(reply_).first(kAcceptBytes);
    }
    case Step::kAwaitAccept: {
      if (!DigestsEqual(message, DigestOf(kAcceptLabel)))
        return Reject("the other side does not know this job's secret");
      step_ = Step::kDone;
      return std::span<const std::byte>();
    }
    case Step::kDone:
      break;
  }
  return std::span<const std::byte>();
}

// As the proofs, the keys depend on the whole hello and on the random bytes of both sides.
LinkKeys Handshake::Keys() const {
  HVL_CHECK(done(), "keys of a connection that is not proven");
  LinkKeys keys;
  keys.send.key = DigestOf(is_client_ ? kClientKeyLabel : kServerKeyLabel);
  keys.receive.key = DigestOf(is_client_ ? kServerKeyLabel : kClientKeyLabel);
  return keys;
}

Status Handshake::Advance(int socket) {
  // The messages are far smaller than an empty socket buffer, so they are always taken whole.
  const auto send_whole = [socket](std::span<const std::byte> bytes) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(bytes.size())) return Status::Ok();
    return ErrnoStatus("cannot send in the hand-shake");
  };
  if (step_ == Step::kSendHello) {
    HVL_RETURN_IF_ERROR(send_whole(hello_));
    step_ = Step::kAwaitChallenge;
  }
  while (!done()) {
    const std::size_t missing = wanted_bytes() - input_bytes_;
    const ssize_t got = ::recv(socket, input_.data() + input_bytes_, missing, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Status::Ok();
    if (got < 0) return ErrnoStatus("the connection failed in the hand-shake");
    if (got == 0)
      return {StatusCode::kUnavailable, "the other side closed the connection in the hand-shake"};
    input_bytes_ += static_cast<std::size_t>(got);
    if (input_bytes_ < wanted_bytes()) continue;
    HVL_ASSIGN_OR_RETURN(const auto reply, Feed(std::span(input_).first(input_bytes_)));
    input_bytes_ = 0;
    if (!reply.empty()) HVL_RETURN_IF_ERROR(send_whole(reply));
  }
  return Status::Ok();
}

}  // namespace hvl::net
