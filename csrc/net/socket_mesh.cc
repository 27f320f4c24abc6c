#include "csrc/net/socket_mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/connector.h"
#include "csrc/net/mesh_setup.h"
#include "csrc/net/process.h"
#include "csrc/net/socket.h"

namespace hvl::net {
namespace {

constexpr std::size_t kScratchBytes = 64 << 10;
constexpr std::size_t kAddressBytes = 64;
constexpr Duration kCloseTimeout = std::chrono::milliseconds(100);
// A dying process closes its sockets shortly before its end can be seen. Worth a short wait once,
// because "killed by signal 9" helps more than "closed its link".
constexpr int kEndOfProcessMs = 50;

// What an event belongs to, in epoll's 64 bits: the source above, the rank below.
enum class Source : std::uint32_t { kSocket, kProcess, kWake };

std::uint64_t EventKey(Source source, int rank) {
  return (static_cast<std::uint64_t>(source) << 32) | static_cast<std::uint32_t>(rank);
}

std::string NameOf(int rank, int pid) {
  return pid > 0 ? Format("rank {} (pid {})", rank, pid) : Format("rank {}", rank);
}

}  // namespace

SocketMesh::SocketMesh(MeshOptions options, MeshWorld world, Logger logger)
    : options_(std::move(options)),
      world_(std::move(world)),
      logger_(std::move(logger)),
      owner_pid_(::getpid()),
      scratch_(kScratchBytes) {}

Result<std::unique_ptr<Mesh>> SocketMesh::Create(MeshOptions options, MeshWorld world,
                                                 std::vector<PeerLink> links, Logger logger) {
  std::unique_ptr<SocketMesh> mesh(
      new SocketMesh(std::move(options), std::move(world), std::move(logger)));
  HVL_RETURN_IF_ERROR(mesh->Register(std::move(links)));
  return std::unique_ptr<Mesh>(std::move(mesh));
}

SocketMesh::~SocketMesh() {
  if (::getpid() != owner_pid_) return;  // a forked child only closes its copies
  // Such a child may hold them for long; this ends the links all the same.
  for (const Peer& peer : peers_)
    if (peer.link.socket.valid()) ::shutdown(peer.link.socket.get(), SHUT_RDWR);
}

Status SocketMesh::Register(std::vector<PeerLink> links) {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  wake_event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !wake_event_.valid())
    return ErrnoStatus("cannot create the mesh's event queue");
  const auto add = [this](int fd, std::uint64_t key) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = key;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status::Ok();
    return ErrnoStatus("cannot watch a descriptor");
  };
  HVL_RETURN_IF_ERROR(add(wake_event_.get(), EventKey(Source::kWake, 0)));
  peers_.resize(links.size());
  for (std::size_t i = 0; i < links.size(); ++i) {
    Peer& peer = peers_[i];
    peer.rank = static_cast<int>(i);
    peer.link = std::move(links[i]);
    peer.lost = peer.muted = peer.rank == options_.rank;
    if (peer.lost) continue;
    HVL_RETURN_IF_ERROR(add(peer.link.socket.get(), EventKey(Source::kSocket, peer.rank)));
    if (peer.link.process_fd.valid())
      HVL_RETURN_IF_ERROR(add(peer.link.process_fd.get(), EventKey(Source::kProcess, peer.rank)));
  }
  return Status::Ok();
}

// --- Set-up ---------------------------------------------------------------------------------

namespace {

template <typename Peers>
std::vector<SetupLink> SetupLinks(const Peers& peers) {
  std::vector<SetupLink> links;
  for (const auto& peer : peers)
    if (peer.link.socket.valid())
      links.push_back({peer.rank, peer.link.socket.get(), peer.link.process_fd.get()});
  return links;
}

}  // namespace

Result<std::vector<UniqueFd>> SocketMesh::ExchangeFds(int fd) {
  if (options_.tcp_only && options_.size > 1)
    return Status(StatusCode::kNotSupported,
                  "file descriptors need Unix sockets between the ranks, not TCP");
  std::vector<SetupLink> links = SetupLinks(peers_);
  std::erase_if(links, [this](const SetupLink& link) { return !OnThisHost(link.rank); });
  HVL_ASSIGN_OR_RETURN(
      std::vector<SetupMessage> messages,
      ExchangeSetup(links, FrameKind::kDescriptor, "", fd, SteadyClock().Now() + options_.timeout));
  std::vector<UniqueFd> by_rank(peers_.size());
  for (std::size_t i = 0; i < links.size(); ++i)
    by_rank[static_cast<std::size_t>(links[i].rank)] = std::move(messages[i].fd);
  return by_rank;
}

bool SocketMesh::OnThisHost(int rank) const {
  return world_.hosts[static_cast<std::size_t>(rank)] ==
         world_.hosts[static_cast<std::size_t>(options_.rank)];
}

std::vector<int> SocketMesh::ProcessFds() const {
  std::vector<int> fds;
  for (const Peer& peer : peers_) fds.push_back(peer.link.process_fd.get());
  return fds;
}

Result<std::vector<UniqueFd>> SocketMesh::ConnectData() {
  if (options_.size == 1) return std::vector<UniqueFd>(1);
  const TimePoint deadline = SteadyClock().Now() + options_.timeout;
  HVL_ASSIGN_OR_RETURN(Listener listener, Listen(Transport::kTcp));
  std::string padded = listener.address;
  padded.resize(kAddressBytes, '\0');
  const auto links = SetupLinks(peers_);
  HVL_ASSIGN_OR_RETURN(const std::vector<SetupMessage> messages,
                       ExchangeSetup(links, FrameKind::kAddress, padded, -1, deadline));
  ConnectPlan plan{.rank = options_.rank,
                   .size = options_.size,
                   .job_id = options_.job_id,
                   .generation = world_.generation,
                   .channel = Channel::kData,
                   .secret = options_.secret,
                   .listener = std::move(listener),
                   .addresses = std::vector<std::string>(peers_.size()),
                   .process_fds = ProcessFds(),
                   .deadline = deadline};
  for (std::size_t i = 0; i < links.size(); ++i) {
    const std::string& text = messages[i].payload;
    plan.addresses[static_cast<std::size_t>(links[i].rank)] = text.substr(0, text.find('\0'));
  }
  return ConnectAll(std::move(plan), logger_);
}

// --- Sending --------------------------------------------------------------------------------

void SocketMesh::Send(int peer, std::span<const std::byte> frame) {
  HVL_CHECK(peer >= 0 && peer < options_.size && peer != options_.rank,
            Format("rank {} of {} sends to rank {}", options_.rank, options_.size, peer));
  HVL_CHECK(frame.size() <= kMaxFrameBytes, Format("a frame of {} bytes", frame.size()));
  Enqueue(peers_[static_cast<std::size_t>(peer)], FrameKind::kUser, frame);
}

void SocketMesh::Enqueue(Peer& peer, FrameKind kind, std::span<const std::byte> payload) {
  if (peer.muted) return;
  std::array<std::byte, kFrameHeaderBytes> header{};
  EncodeFrameHeader({static_cast<std::uint32_t>(payload.size()), kind}, header);
  std::size_t sent = 0;
  if (peer.unsent.empty()) {
    std::array<iovec, 2> parts{
        iovec{header.data(), header.size()},
        // sendmsg only reads, but its type does not say so.
        iovec{const_cast<std::byte*>(payload.data()), payload.size()},  // NOLINT
    };
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t result = ::sendmsg(peer.link.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result < 0 && errno != EAGAIN && errno != EINTR) {
      peer.muted = true;  // reading will tell why, after what the peer still said
      return;
    }
    sent = result < 0 ? 0 : static_cast<std::size_t>(result);
  }
  if (sent < header.size()) peer.unsent.Append(std::span(header).subspan(sent));
  const std::size_t payload_sent = sent - std::min(sent, header.size());
  if (payload_sent < payload.size()) peer.unsent.Append(payload.subspan(payload_sent));
  if (peer.unsent.size() > options_.max_queued_bytes) {
    peer.muted = true;
    overflowed_.push_back(peer.rank);
    Wake();
  } else if (!peer.unsent.empty()) {
    WatchWritable(peer, true);
  }
}

void SocketMesh::Flush(Peer& peer) {
  while (!peer.unsent.empty() && !peer.lost) {
    const std::span<const std::byte> bytes = peer.unsent.front();
    const ssize_t sent =
        ::send(peer.link.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) {
      peer.muted = true;
      peer.unsent.Consume(peer.unsent.size());
      break;
    }
    peer.unsent.Consume(static_cast<std::size_t>(sent));
  }
  WatchWritable(peer, false);
}

void SocketMesh::WatchWritable(Peer& peer, bool on) {
  if (peer.writable == on || peer.lost) return;
  peer.writable = on;
  epoll_event event{};
  event.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = EventKey(Source::kSocket, peer.rank);
  const int result = ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, peer.link.socket.get(), &event);
  HVL_CHECK(result == 0, Format("epoll_ctl failed: errno {}", errno));
}

// --- Receiving ------------------------------------------------------------------------------

int SocketMesh::WaitForEvents(int timeout_ms, std::span<epoll_event> events) {
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  HVL_CHECK(count >= 0 || errno == EINTR, Format("epoll_wait failed: errno {}", errno));
  return std::max(count, 0);
}

bool SocketMesh::Poll(Duration timeout, MeshReceiver& receiver) {
  if (timeout > Duration::zero() && overflowed_.empty()) Sleep(timeout);
  bool delivered = false;
  for (const int rank : std::exchange(overflowed_, {})) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (peer.lost) continue;
    Lose(peer, Overflowed(peer), receiver);
    delivered = true;
  }
  std::array<epoll_event, 64> events;
  const int count = WaitForEvents(0, events);
  std::array<int, 64> ended;  // after all sockets, so that a last frame comes before the loss
  std::size_t ended_count = 0;
  for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(count))) {
    const auto source = static_cast<Source>(event.data.u64 >> 32);
    if (source == Source::kWake) continue;  // for a sleeper
    Peer& peer = peers_[event.data.u64 & 0xFFFFFFFF];
    if (peer.lost) continue;
    if (source == Source::kProcess) {
      ended[ended_count++] = peer.rank;
      continue;
    }
    if ((event.events & EPOLLOUT) != 0) Flush(peer);
    if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0)
      delivered = Receive(peer, receiver) != Received::kNothing || delivered;
  }
  for (const int rank : std::span(ended).first(ended_count)) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (peer.lost) continue;
    DrainDeadProcess(peer, receiver);
    delivered = true;
  }
  return delivered;
}

SocketMesh::Received SocketMesh::Receive(Peer& peer, MeshReceiver& receiver) {
  const ssize_t got =
      ::recv(peer.link.socket.get(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Received::kNothing;
  if (got <= 0) {
    Lose(peer, EndOf(peer), receiver);
    return Received::kEnd;
  }
  const auto fresh = std::span<const std::byte>(scratch_).first(static_cast<std::size_t>(got));
  std::size_t consumed = 0;
  if (peer.partial.empty()) {
    if (!Deliver(peer, fresh, consumed, receiver)) return Received::kEnd;
    if (consumed < fresh.size()) peer.partial.Append(fresh.subspan(consumed));
  } else {
    peer.partial.Append(fresh);
    if (!Deliver(peer, peer.partial.front(), consumed, receiver)) return Received::kEnd;
    peer.partial.Consume(consumed);
  }
  return Received::kSome;
}

// Hands out the whole frames at the front of `bytes`. False when the peer is lost afterwards.
bool SocketMesh::Deliver(Peer& peer, std::span<const std::byte> bytes, std::size_t& consumed,
                         MeshReceiver& receiver) {
  for (;;) {
    const NextFrame next = FindFrame(bytes.subspan(consumed), kMaxFrameBytes);
    switch (next.is) {
      case NextFrame::Is::kIncomplete:
        return true;
      case NextFrame::Is::kFrame:
        consumed += next.bytes;
        receiver.OnFrame(peer.rank, next.payload);
        break;
      case NextFrame::Is::kGoodbye:
        Lose(peer,
             {StatusCode::kUnavailable,
              Format("{} has left: its session was shut down", NameOf(peer.rank, peer.link.pid)),
              peer.rank},
             receiver);
        return false;
      case NextFrame::Is::kCorrupt:
        Lose(peer,
             {StatusCode::kInternal,
              Format("the control link to {} is corrupt: a frame of kind {} with {} bytes (at most "
                     "{} are allowed)",
                     NameOf(peer.rank, peer.link.pid), static_cast<unsigned>(next.header.kind),
                     next.header.payload_bytes, kMaxFrameBytes),
              peer.rank},
             receiver);
        return false;
    }
  }
}

// Its process has ended, but a forked child may keep the socket open: there will be no end of
// stream, only an end of bytes.
void SocketMesh::DrainDeadProcess(Peer& peer, MeshReceiver& receiver) {
  while (!peer.lost) {
    if (Receive(peer, receiver) == Received::kNothing) Lose(peer, EndOf(peer), receiver);
  }
}

void SocketMesh::Lose(Peer& peer, const Status& cause, MeshReceiver& receiver) {
  peer.lost = peer.muted = true;
  peer.unsent.Consume(peer.unsent.size());
  // Closing alone does not end the watch (or the link) while a forked child holds a copy.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.link.socket.get(), nullptr);
  ::shutdown(peer.link.socket.get(), SHUT_RDWR);
  peer.link.socket.Reset();
  if (peer.link.process_fd.valid())
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.link.process_fd.get(), nullptr);
  peer.link.process_fd.Reset();
  HVL_LOG(logger_, kDebug, "net", "{}", cause.message());
  receiver.OnPeerLost(peer.rank, cause);
}

Status SocketMesh::Overflowed(const Peer& peer) const {
  return {StatusCode::kResourceExhausted,
          Format("{} does not read its control link: more than {} bytes wait for it",
                 NameOf(peer.rank, peer.link.pid), options_.max_queued_bytes),
          peer.rank};
}

// Called with errno of the failed recv, or after an end of stream.
Status SocketMesh::EndOf(const Peer& peer) const {
  const std::string name = NameOf(peer.rank, peer.link.pid);
  const std::string_view where = peer.partial.empty() ? "" : ", in the middle of a message";
  const int process = peer.link.process_fd.get();
  const bool ended = process >= 0 && ProcessEnded(process, kEndOfProcessMs);
  const std::string how = ended ? DescribeEnd(peer.link.pid, process)
                                : std::string("closed its link without saying goodbye");
  return {StatusCode::kUnavailable, Format("{} {}{}", name, how, where), peer.rank};
}

// --- Sleeping and closing ---------------------------------------------------------------------

// The events stay where they are (epoll reports levels, not edges) for the thread that polls. Only
// the wake event is taken, and only here: a poll that took it would rob the sleeper.
void SocketMesh::Sleep(Duration timeout) {
  // Either Wake() sees that a thread is about to sleep and rings the event, or this thread sees
  // the request and does not sleep: both sides write first and read second, in one total order.
  sleeping_.store(true);
  if (!wake_requested_.exchange(false) && timeout > Duration::zero()) {
    const auto millis = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
    const bool for_ever = millis > std::numeric_limits<int>::max();
    std::array<epoll_event, 64> events;
    const int count = WaitForEvents(for_ever ? -1 : static_cast<int>(millis), events);
    for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(count))) {
      if (static_cast<Source>(event.data.u64 >> 32) != Source::kWake) continue;
      std::uint64_t rings = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_event_.get(), &rings, sizeof rings);
      wake_requested_.store(false);
    }
  }
  sleeping_.store(false);
}

void SocketMesh::Wake() {
  wake_requested_.store(true);
  if (!sleeping_.load()) return;
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then it is ringing already.
  [[maybe_unused]] const ssize_t written = ::write(wake_event_.get(), &one, sizeof one);
}

void SocketMesh::Close() {
  if (::getpid() != owner_pid_) return;  // the links are still the parent's
  for (Peer& peer : peers_) {
    Enqueue(peer, FrameKind::kGoodbye, {});
    peer.muted = true;
  }
  const TimePoint deadline = SteadyClock().Now() + kCloseTimeout;
  for (;;) {
    std::vector<pollfd> blocked;
    for (Peer& peer : peers_) {
      if (!peer.lost) Flush(peer);
      if (!peer.unsent.empty()) blocked.push_back({peer.link.socket.get(), POLLOUT, 0});
    }
    if (blocked.empty() || SteadyClock().Now() >= deadline) break;
    ::poll(blocked.data(), blocked.size(), PollMillis(deadline));
  }
  for (const Peer& peer : peers_)
    if (peer.link.socket.valid()) ::shutdown(peer.link.socket.get(), SHUT_WR);
}

}  // namespace hvl::net
