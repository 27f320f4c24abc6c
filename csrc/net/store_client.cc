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

class StoreClient final : public Store {
 public:
  StoreClient(std::string address, Transport transport, const Secret& secret, std::string job_id,
              Interrupted interrupted)
      : address_(std::move(address)),
        transport_(transport),
        secret_(secret),
        job_id_(std::move(job_id)),
        interrupted_(std::move(interrupted)) {}

  Result<Rendezvous> Join(int rank, int size, const std::string& blob, Duration timeout) override {
    HVL_RETURN_IF_ERROR(CheckJoin(rank, size, blob.size()));
    const Duration capped = std::min<Duration>(timeout, std::chrono::hours(24 * 365));
    const TimePoint deadline = SteadyClock().Now() + capped;
    HVL_ASSIGN_OR_RETURN(const UniqueFd socket, Connect(rank, deadline));
    const Duration left = deadline - SteadyClock().Now();
    HVL_RETURN_IF_ERROR(
        Write(socket.get(), EncodeJoin(rank, size, left, blob), deadline + kAnswerGrace));
    std::array<std::byte, kAnswerHeaderBytes> header_bytes{};
    HVL_RETURN_IF_ERROR(Read(socket.get(), header_bytes, deadline + kAnswerGrace));
    HVL_ASSIGN_OR_RETURN(const AnswerHeader header, DecodeAnswerHeader(header_bytes));
    std::string body(header.body_bytes, '\0');
    HVL_RETURN_IF_ERROR(Read(socket.get(), std::as_writable_bytes(std::span(body)),
                             SteadyClock().Now() + kAnswerGrace));
    return DecodeAnswer(header, body);
  }

 private:
  Status Gone(const std::string& why) const {
    return {StatusCode::kUnavailable,
            Format("the rendezvous store at {} is gone (has hvlrun ended?): {}", address_, why)};
  }
  Status Late(const std::string& what) const {
    return {StatusCode::kTimeout, Format("the rendezvous store at {} {} in time", address_, what)};
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

  // Connects and proves itself. A server under a flood of strangers may cut the first attempts.
  Result<UniqueFd> Connect(int rank, TimePoint deadline) const {
    for (bool refused = false;;) {
      auto socket = StartConnect(address_);
      if (socket.status().code() == StatusCode::kUnavailable)
        return Gone(socket.status().message());
      HVL_RETURN_IF_ERROR(socket.status());
      if (socket->valid()) {
        Status proven = transport_ == Transport::kUnix ? CheckPeerUser(socket->get()) : Status();
        if (proven.ok()) proven = Prove(socket->get(), rank, deadline);
        if (proven.ok()) return socket;
        if (proven.code() == StatusCode::kAborted) return proven;
        if (proven.code() == StatusCode::kMismatch) {
          return Status(proven.code(), Format("cannot use the rendezvous store at {}: {}", address_,
                                              proven.message()));
        }
        refused = refused || proven.code() == StatusCode::kUnavailable;
      }
      if (SteadyClock().Now() >= deadline) {
        return refused ? Refused(rank) : Late("did not accept a connection");
      }
      HVL_RETURN_IF_ERROR(WaitFor(-1, 0, std::min(deadline, SteadyClock().Now() + kRetry)));
    }
  }

  Status Prove(int socket, int rank, TimePoint deadline) const {
    const TimePoint until = std::min(deadline, SteadyClock().Now() + kHandshakeTimeout);
    Handshake handshake = Handshake::Connect({.job_id = job_id_,
                                              .generation = 0,
                                              .channel = Channel::kStore,
                                              .client_rank = rank,
                                              .server_rank = kStoreRank},
                                             secret_);
    HVL_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, until));
    for (;;) {
      HVL_RETURN_IF_ERROR(handshake.Advance(socket));
      if (handshake.done()) return Status::Ok();
      if (SteadyClock().Now() >= until) return Late("did not answer the hand-shake");
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
};

}  // namespace

Result<std::unique_ptr<Store>> OpenStore(const std::string& address, const Secret& secret,
                                         const std::string& job_id, Interrupted interrupted) {
  const auto transport = TransportOf(address);
  if (!transport.ok())
    return Status(
        transport.status().code(),
        Format("cannot open the rendezvous store (HVL_STORE): {}", transport.status().message()));
  HVL_RETURN_IF_ERROR(CheckJobId(job_id));
  return std::unique_ptr<Store>(
      std::make_unique<StoreClient>(address, *transport, secret, job_id, std::move(interrupted)));
}

}  // namespace hvl::net
