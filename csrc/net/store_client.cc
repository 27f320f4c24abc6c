#include <poll.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/handshake.h"
#include "csrc/net/round.h"
#include "csrc/net/socket.h"
#include "csrc/net/store.h"
#include "csrc/net/store_protocol.h"

namespace hvl::net {
namespace {

// The server ends a wait on time and says who is missing; only a server that is stuck needs more.
constexpr Duration kAnswerGrace = std::chrono::seconds(5);
constexpr Duration kRetry = std::chrono::milliseconds(20);
constexpr Duration kLookUpPause = std::chrono::milliseconds(200);

/// How one attempt to connect went.
struct Attempt {
  enum class End : std::uint8_t { kProven, kNobodyListens, kCut, kSilent, kHopeless };
  End end = End::kProven;
  UniqueFd socket;  // proven
  Status why;       // not
};

class StoreClient final : public Store {
 public:
  StoreClient(std::string address, Transport transport, const Secret& secret, std::string job_id,
              Interrupted interrupted, WhenAbsent when_absent, Duration silence_limit)
      : address_(std::move(address)),
        transport_(transport),
        secret_(secret),
        job_id_(std::move(job_id)),
        interrupted_(std::move(interrupted)),
        when_absent_(when_absent),
        silence_limit_(transport == Transport::kTcp ? silence_limit : Duration::zero()) {}

  Result<Rendezvous> Join(int rank, int size, const std::string& blob, Duration timeout) override {
    HVL_RETURN_IF_ERROR(CheckJoin(rank, size, blob.size()));
    const Duration capped = std::min<Duration>(timeout, std::chrono::hours(24 * 365));
    const TimePoint deadline = SteadyClock().Now() + capped;
    HVL_ASSIGN_OR_RETURN(const UniqueFd socket, Connect(rank, deadline));
    const Duration left = deadline - SteadyClock().Now();
    const JoinHeader join{
        .rank = rank, .size = size, .timeout = left, .silence_limit = silence_limit_};
    HVL_RETURN_IF_ERROR(Write(socket.get(), EncodeJoin(join, blob), deadline + kAnswerGrace));
    if (silence_limit_ > Duration::zero())
      HVL_RETURN_IF_ERROR(LimitSilence(socket.get(), silence_limit_));
    std::array<std::byte, kAnswerHeaderBytes> header_bytes{};
    HVL_RETURN_IF_ERROR(Read(socket.get(), header_bytes, deadline + kAnswerGrace));
    HVL_ASSIGN_OR_RETURN(const AnswerHeader header, DecodeAnswerHeader(header_bytes));
    std::string body(header.body_bytes, '\0');
    HVL_RETURN_IF_ERROR(Read(socket.get(), std::as_writable_bytes(std::span(body)),
                             SteadyClock().Now() + kAnswerGrace));
    return DecodeAnswer(header, body);
  }

  Result<std::string> LocalHost(TimePoint deadline) override {
    if (transport_ == Transport::kUnix) return std::string();
    for (;;) {
      const Result<std::vector<SocketAddress>> found = Candidates();
      Status why = found.status();
      for (std::size_t i = 0; found.ok() && i < found->size(); ++i) {
        Result<std::string> local = LocalHostTowards((*found)[i]);
        if (local.ok()) return local;
        why = local.status();
      }
      if (SteadyClock().Now() >= deadline)
        return Late(Format("could not be reached: {}", why.message()));
      HVL_RETURN_IF_ERROR(WaitFor(-1, 0, std::min(deadline, SteadyClock().Now() + kLookUpPause)));
    }
  }

 private:
  Status Gone(const std::string& why) const {
    return {StatusCode::kUnavailable,
            Format("the rendezvous store at {} is gone (has hvlrun ended?): {}", address_, why)};
  }
  Status Late(const std::string& what) const {
    return {StatusCode::kTimeout, Format("the rendezvous store at {} {} in time", address_, what)};
  }

  // A store that is lost with its host does not come back, as one that is gone may.
  Status Silent(const Status& why) const {
    return {StatusCode::kTimeout,
            Format("the rendezvous store at {} was lost: its host has shown no sign of life for "
                   "{:.3g} s ({})",
                   address_, std::chrono::duration<double>(silence_limit_).count(), why.message())};
  }

  Status Refused(int rank) const {
    return {StatusCode::kTimeout,
            Format("the rendezvous store at {} closed every connection of rank {} in the "
                   "hand-shake: HVL_JOB_ID, which is '{}' in the rank's environment, may not be "
                   "the launcher's, whose output then names both. Let hvlrun set HVL_JOB_ID, "
                   "HVL_STORE and HVL_SECRET_FD",
                   address_, rank, job_id_)};
  }

  // Until the socket is ready or the time has come; may return early for no reason.
  Status WaitFor(int fd, short events, TimePoint until) const {
    for (;;) {
      const TimePoint now = SteadyClock().Now();
      const TimePoint wake =
          interrupted_ ? std::min<TimePoint>(until, now + kInterruptLatency) : until;
      pollfd polled{fd, events, 0};
      const int ready = ::poll(&polled, fd < 0 ? 0 : 1, PollMillis(wake));
      HVL_CHECK(ready >= 0 || errno == EINTR, Format("poll failed: errno {}", errno));
      if (interrupted_ && interrupted_()) {
        return {StatusCode::kAborted, "joining was interrupted while ranks were missing"};
      }
      if (ready != 0 || wake == until) return Status::Ok();
    }
  }

  /// Where the store may be. Names are looked up anew each time: they can come to be known late.
  Result<std::vector<SocketAddress>> Candidates() const {
    if (transport_ == Transport::kUnix) {
      HVL_ASSIGN_OR_RETURN(const SocketAddress address, NumericAddress(address_));
      return std::vector<SocketAddress>{address};
    }
    HVL_ASSIGN_OR_RETURN(const HostPort place, ParseTcp(address_));
    return LookUp(place);
  }

  // Connects and proves itself. A server under a flood of strangers may cut the first attempts.
  Result<UniqueFd> Connect(int rank, TimePoint deadline) const {
    Attempt last;
    bool was_cut = false;
    for (Duration pause = kRetry;; pause = std::min(2 * pause, LongestPause())) {
      const Result<std::vector<SocketAddress>> targets = Candidates();
      if (!targets.ok()) last = {Attempt::End::kSilent, {}, targets.status()};
      for (std::size_t i = 0; targets.ok() && i < targets->size(); ++i) {
        last = ConnectOnce((*targets)[i], rank, deadline);
        if (last.end == Attempt::End::kProven) return std::move(last.socket);
        if (last.end == Attempt::End::kHopeless) return last.why;
        was_cut = was_cut || last.end == Attempt::End::kCut;
      }
      if (last.end == Attempt::End::kNobodyListens && when_absent_ == WhenAbsent::kFail)
        return Gone(last.why.message());
      if (SteadyClock().Now() >= deadline) break;
      HVL_RETURN_IF_ERROR(WaitFor(-1, 0, std::min(deadline, SteadyClock().Now() + pause)));
    }
    if (was_cut) return Refused(rank);
    return Late(Format("could not be reached: {}", last.why.message()));
  }

  /// Few names of many hosts are asked for often; the others of a big job may share a name server.
  Duration LongestPause() const { return transport_ == Transport::kUnix ? kRetry : kLookUpPause; }

  Attempt ConnectOnce(const SocketAddress& target, int rank, TimePoint deadline) const {
    auto socket = StartConnect(target);
    if (!socket.ok()) return Failed(socket.status());
    if (!socket->valid()) return {Attempt::End::kSilent, {}, Busy()};
    const TimePoint until = std::min(deadline, SteadyClock().Now() + kHandshakeTimeout);
    Status status = WaitFor(socket->get(), POLLOUT, until);
    if (status.ok() && SteadyClock().Now() >= until)
      status = Status(StatusCode::kTimeout, "no answer");
    if (status.ok()) status = FinishConnect(socket->get());
    if (!status.ok()) return Failed(status);
    if (transport_ == Transport::kUnix) status = CheckPeerUser(socket->get());
    if (status.ok()) status = Prove(socket->get(), rank, until);
    if (status.ok()) return {Attempt::End::kProven, std::move(*socket), {}};
    if (status.code() == StatusCode::kUnavailable) return {Attempt::End::kCut, {}, status};
    return Failed(status);
  }

  Attempt Failed(const Status& why) const {
    switch (why.code()) {
      case StatusCode::kUnavailable:
        return {Attempt::End::kNobodyListens, {}, why};
      case StatusCode::kTimeout:
        return {Attempt::End::kSilent, {}, why};
      case StatusCode::kMismatch:
        return {Attempt::End::kHopeless,
                {},
                {why.code(),
                 Format("cannot use the rendezvous store at {}: {}", address_, why.message())}};
      default:
        return {Attempt::End::kHopeless, {}, why};
    }
  }

  static Status Busy() { return {StatusCode::kTimeout, "its queue of connections is full"}; }

  Status Prove(int socket, int rank, TimePoint until) const {
    Handshake handshake = Handshake::Connect({.job_id = job_id_,
                                              .generation = 0,
                                              .channel = Channel::kStore,
                                              .client_rank = rank,
                                              .server_rank = kStoreRank},
                                             secret_);
    for (;;) {
      HVL_RETURN_IF_ERROR(handshake.Advance(socket));
      if (handshake.done()) return Status::Ok();
      if (SteadyClock().Now() >= until)
        return {StatusCode::kTimeout, "it did not answer the hand-shake"};
      HVL_RETURN_IF_ERROR(WaitFor(socket, POLLIN, until));
    }
  }

  Status Write(int socket, std::string_view bytes, TimePoint until) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
      if (sent >= 0 || errno == EINTR) continue;
      if (errno != EAGAIN) return Gone(ErrnoStatus("cannot send").message());
      if (SteadyClock().Now() >= until) return Late("did not take the request");
      HVL_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, until));
    }
    return Status::Ok();
  }

  Status Read(int socket, std::span<std::byte> bytes, TimePoint until) const {
    while (!bytes.empty()) {
      const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got == 0) return Gone("it closed the connection");
      if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
      if (got > 0 || errno == EINTR) continue;
      if (errno != EAGAIN && IsSilence(errno)) return Silent(ErrnoStatus("cannot receive"));
      if (errno != EAGAIN) return Gone(ErrnoStatus("cannot receive").message());
      if (SteadyClock().Now() >= until) return Late("did not answer");
      HVL_RETURN_IF_ERROR(WaitFor(socket, POLLIN, until));
    }
    return Status::Ok();
  }

  const std::string address_;
  const Transport transport_;
  const Secret secret_;
  const std::string job_id_;
  const Interrupted interrupted_;
  const WhenAbsent when_absent_;
  const Duration silence_limit_;  // zero: none
};

}  // namespace

Result<std::string> Store::LocalHost(TimePoint /*deadline*/) { return std::string(); }

Result<std::unique_ptr<Store>> OpenStore(const std::string& address, const Secret& secret,
                                         const std::string& job_id, Interrupted interrupted,
                                         WhenAbsent when_absent, Duration silence_limit) {
  const auto transport = TransportOf(address);
  if (!transport.ok())
    return Status(
        transport.status().code(),
        Format("cannot open the rendezvous store (HVL_STORE): {}", transport.status().message()));
  HVL_RETURN_IF_ERROR(CheckJobId(job_id));
  return std::unique_ptr<Store>(std::make_unique<StoreClient>(
      address, *transport, secret, job_id, std::move(interrupted), when_absent, silence_limit));
}

}  // namespace hvl::net
