#include "csrc/net/mesh_setup.h"

#include <poll.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "csrc/base/check.h"
#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/socket.h"

namespace hvl::net {
namespace {

// The kernel bounds the descriptors in flight per user; with many ranks some must wait for others
// to be received, and there is no event for that.
constexpr Duration kInFlightRetry = std::chrono::milliseconds(1);

struct Progress {
  SetupLink link;
  std::size_t sent = 0;
  std::string received;
  UniqueFd fd;
  bool must_wait = false;  // too many descriptors in flight
};

union DescriptorControl {
  cmsghdr aligned;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

class SetupExchange {
 public:
  SetupExchange(std::span<const SetupLink> links, FrameKind kind, const std::string& payload,
                int fd, TimePoint deadline)
      : kind_(kind), fd_(fd), deadline_(deadline) {
    std::array<std::byte, kFrameHeaderBytes> header{};
    EncodeFrameHeader({static_cast<std::uint32_t>(payload.size()), kind}, header);
    message_.assign(reinterpret_cast<const char*>(header.data()), header.size());
    message_ += payload;
    for (const SetupLink& link : links) {
      Progress progress;
      progress.link = link;
      peers_.push_back(std::move(progress));
    }
  }

  Result<std::vector<SetupMessage>> Run() {
    for (;;) {
      bool done = true;
      for (Progress& peer : peers_) {
        HVL_RETURN_IF_ERROR(Write(peer));
        HVL_RETURN_IF_ERROR(Read(peer));
        done = done && Done(peer);
      }
      if (done) return TakeMessages();
      if (SteadyClock().Now() >= deadline_) return TimedOut();
      HVL_RETURN_IF_ERROR(Wait());
    }
  }

 private:
  bool Done(const Progress& peer) const {
    return peer.sent == message_.size() && peer.received.size() == message_.size();
  }

  static Status Lost(const Progress& peer, const std::string& how) {
    return {StatusCode::kUnavailable,
            Format("lost rank {} while the links were being set up: {}", peer.link.rank, how),
            peer.link.rank};
  }

  Status TimedOut() const {
    std::vector<int> missing;
    for (const Progress& peer : peers_)
      if (!Done(peer)) missing.push_back(peer.link.rank);
    return {StatusCode::kTimeout,
            Format("{} did not take part in setting up the links in time", RanksText(missing)),
            missing.front()};
  }

  Status Write(Progress& peer) {
    peer.must_wait = false;
    if (peer.sent == message_.size()) return Status::Ok();
    iovec part{message_.data() + peer.sent, message_.size() - peer.sent};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    DescriptorControl control{};
    if (fd_ >= 0 && peer.sent == 0) {  // the descriptor travels with the first byte
      header.msg_control = &control;
      header.msg_controllen = sizeof control;
      cmsghdr* const entry = CMSG_FIRSTHDR(&header);
      entry->cmsg_level = SOL_SOCKET;
      entry->cmsg_type = SCM_RIGHTS;
      entry->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(entry), &fd_, sizeof fd_);
    }
    const ssize_t sent = ::sendmsg(peer.link.socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      peer.sent += static_cast<std::size_t>(sent);
    } else if (errno == ETOOMANYREFS) {
      peer.must_wait = true;
    } else if (errno != EAGAIN && errno != EINTR) {
      return Lost(peer, ErrnoStatus("cannot send").message());
    }
    return Status::Ok();
  }

  Status Read(Progress& peer) {
    const std::size_t missing = message_.size() - peer.received.size();
    if (missing == 0) return Status::Ok();
    std::array<char, 256> buffer{};
    iovec part{buffer.data(), std::min(missing, buffer.size())};
    DescriptorControl control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = &control;
    header.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(peer.link.socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Status::Ok();
    if (got < 0) return Lost(peer, ErrnoStatus("cannot receive").message());
    if (got == 0) return Lost(peer, "it closed the link");
    const cmsghdr* const entry = CMSG_FIRSTHDR(&header);
    if (entry != nullptr && entry->cmsg_level == SOL_SOCKET && entry->cmsg_type == SCM_RIGHTS &&
        entry->cmsg_len == CMSG_LEN(sizeof(int))) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(entry), sizeof fd);
      peer.fd = UniqueFd(fd);
    }
    // Set when this process may not open one more descriptor.
    if ((header.msg_flags & MSG_CTRUNC) != 0)
      return {StatusCode::kResourceExhausted,
              Format("cannot take the descriptor of rank {}: raise the limit on open files "
                     "(ulimit -n)",
                     peer.link.rank)};
    peer.received.append(buffer.data(), static_cast<std::size_t>(got));
    return CheckHeader(peer);
  }

  Status CheckHeader(const Progress& peer) const {
    const std::size_t known = std::min(peer.received.size(), kFrameHeaderBytes);
    if (peer.received.compare(0, known, message_, 0, known) == 0) return Status::Ok();
    return {StatusCode::kInternal,
            Format("rank {} does not take part in this step of the set-up (kind {}): the ranks "
                   "run different code or settings",
                   peer.link.rank, static_cast<unsigned>(kind_)),
            peer.link.rank};
  }

  Status Wait() {
    std::vector<pollfd> polled;
    std::vector<Progress*> owners;
    TimePoint wake = deadline_;
    for (Progress& peer : peers_) {
      if (Done(peer)) continue;
      if (peer.must_wait) wake = std::min(wake, SteadyClock().Now() + kInFlightRetry);
      const bool sending = peer.sent < message_.size() && !peer.must_wait;
      polled.push_back(
          {peer.link.socket, static_cast<short>(sending ? POLLIN | POLLOUT : POLLIN), 0});
      owners.push_back(&peer);
      if (peer.link.process_fd < 0) continue;
      polled.push_back({peer.link.process_fd, POLLIN, 0});
      owners.push_back(&peer);
    }
    const int ready = ::poll(polled.data(), polled.size(), PollMillis(wake));
    HVL_CHECK(ready >= 0 || errno == EINTR, Format("poll failed: errno {}", errno));
    for (std::size_t i = 0; ready > 0 && i < polled.size(); ++i) {
      Progress& peer = *owners[i];
      if (polled[i].fd != peer.link.process_fd || polled[i].revents == 0) continue;
      // It may have finished its part and left: then its message is here.
      HVL_RETURN_IF_ERROR(Read(peer));
      if (!Done(peer)) return Lost(peer, "its process ended");
    }
    return Status::Ok();
  }

  Result<std::vector<SetupMessage>> TakeMessages() {
    std::vector<SetupMessage> messages;
    for (Progress& peer : peers_) {
      if ((fd_ >= 0) != peer.fd.valid())
        return Status(StatusCode::kInternal,
                      Format("rank {} sent no file descriptor", peer.link.rank), peer.link.rank);
      messages.push_back({peer.received.substr(kFrameHeaderBytes), std::move(peer.fd)});
    }
    return messages;
  }

  FrameKind kind_;
  int fd_;
  TimePoint deadline_;
  std::string message_;
  std::vector<Progress> peers_;
};

}  // namespace

Result<std::vector<SetupMessage>> ExchangeSetup(std::span<const SetupLink> links, FrameKind kind,
                                                const std::string& payload, int fd,
                                                TimePoint deadline) {
  return SetupExchange(links, kind, payload, fd, deadline).Run();
}

}  // namespace hvl::net
