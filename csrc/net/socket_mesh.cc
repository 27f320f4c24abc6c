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
#include "csrc/base/errno_text.h"
#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/mesh_setup.h"
#include "csrc/net/process.h"
#include "csrc/net/socket.h"

namespace hvl::net {
namespace {

constexpr std::size_t kScratchBytes = 64 << 10;
constexpr Duration kCloseTimeout = std::chrono::milliseconds(100);
// For others, where no silence is too long.
constexpr Duration kLongestStay = std::chrono::seconds(2);
// A dying process closes its sockets shortly before its end can be seen. Worth a short wait once,
// because "killed by signal 9" helps more than "closed its link".
constexpr int kEndOfProcessMs = 50;
// The kernel gives up a link to a host later than the heartbeats, which tell more.
constexpr Duration kKernelGrace = std::chrono::seconds(1);

// What an event belongs to, in epoll's 64 bits: the source above, the rank below.
enum class Source : std::uint32_t { kSocket, kProcess, kWake };

std::uint64_t EventKey(Source source, int rank) {
  return (static_cast<std::uint64_t>(source) << 32) | static_cast<std::uint32_t>(rank);
}

}  // namespace

SocketMesh::SocketMesh(MeshOptions options, MeshWorld world, Logger logger)
    : options_(std::move(options)),
      world_(std::move(world)),
      tree_(world_.hosts, options_.rank, options_.radix),
      logger_(std::move(logger)),
      owner_pid_(::getpid()),
      scratch_(kScratchBytes) {}

Result<std::unique_ptr<Mesh>> SocketMesh::Create(MeshOptions options, MeshWorld world,
                                                 std::vector<PeerLink> links, Listener data,
                                                 Logger logger) {
  std::unique_ptr<SocketMesh> mesh(
      new SocketMesh(std::move(options), std::move(world), std::move(logger)));
  HVL_RETURN_IF_ERROR(mesh->Register(std::move(links)));
  mesh->data_listener_ = std::move(data);
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
  std::vector<int> branches;
  for (std::size_t i = 0; i < links.size(); ++i) {
    Peer& peer = peers_[i];
    peer.rank = static_cast<int>(i);
    peer.link = std::move(links[i]);
    peer.lost = peer.muted = peer.rank == options_.rank;
    if (!peer.link.socket.valid()) continue;
    HVL_RETURN_IF_ERROR(add(peer.link.socket.get(), EventKey(Source::kSocket, peer.rank)));
    if (peer.link.process_fd.valid())
      HVL_RETURN_IF_ERROR(add(peer.link.process_fd.get(), EventKey(Source::kProcess, peer.rank)));
    if (peer.link.keys) peer.seal = std::make_unique<Seal>(*peer.link.keys);
    peer.link.keys.reset();
    if (tree_.is_branch(peer.rank)) branches.push_back(peer.rank);
  }
  leaving_ = Leaving(branches);
  return WatchHosts();
}

Status SocketMesh::WatchHosts() {
  if (tree_.neighbours().empty() || options_.silence_limit == Duration::zero()) return Status::Ok();
  beats_ =
      std::make_unique<Heartbeats>(tree_.neighbours(), options_.silence_limit, options_.timeout);
  // For the time until the other end has begun to beat.
  for (const int rank : tree_.neighbours())
    HVL_RETURN_IF_ERROR(LimitSilence(At(rank).link.socket.get(), options_.silence_limit));
  return Status::Ok();
}

std::string SocketMesh::NameOf(const Peer& peer) const {
  if (!tree_.on_this_host(peer.rank)) {
    return Format("rank {} on {}", peer.rank,
                  world_.host_names[static_cast<std::size_t>(peer.rank)]);
  }
  return peer.link.pid > 0 ? Format("rank {} (pid {})", peer.rank, peer.link.pid)
                           : Format("rank {}", peer.rank);
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
  std::erase_if(links, [this](const SetupLink& link) { return !tree_.on_this_host(link.rank); });
  HVL_ASSIGN_OR_RETURN(
      std::vector<SetupMessage> messages,
      ExchangeSetup(links, FrameKind::kDescriptor, "", fd, SteadyClock().Now() + options_.timeout));
  std::vector<UniqueFd> by_rank(peers_.size());
  for (std::size_t i = 0; i < links.size(); ++i)
    by_rank[static_cast<std::size_t>(links[i].rank)] = std::move(messages[i].fd);
  return by_rank;
}

std::unique_ptr<DataLinks> SocketMesh::TakeDataLinks() {
  DataPlan plan{.rank = options_.rank,
                .job_id = options_.job_id,
                .generation = world_.generation,
                .secret = options_.secret,
                .listener = std::move(data_listener_),
                .addresses = world_.data_addresses,
                .timeout = options_.timeout};
  return std::make_unique<DataLinks>(std::move(plan), logger_);
}

// --- Sending --------------------------------------------------------------------------------

void SocketMesh::Send(int peer, std::span<const std::byte> frame) {
  HVL_CHECK(peer >= 0 && peer < options_.size && peer != options_.rank,
            Format("rank {} of {} sends to rank {}", options_.rank, options_.size, peer));
  HVL_CHECK(frame.size() <= kMaxFrameBytes, Format("a frame of {} bytes", frame.size()));
  if (At(peer).muted) return;
  if (tree_.is_linked(peer)) return Enqueue(At(peer), FrameKind::kUser, {}, frame);
  std::array<std::byte, kRouteBytes> route{};
  EncodeRoute({options_.rank, peer}, route);
  Enqueue(At(tree_.next_hop(peer)), FrameKind::kRouted, route, frame);
}

void SocketMesh::Enqueue(Peer& peer, FrameKind kind, std::span<const std::byte> route,
                         std::span<const std::byte> payload) {
  if (peer.muted) return;
  std::array<std::byte, kFrameHeaderBytes> header{};
  EncodeFrameHeader({static_cast<std::uint32_t>(route.size() + payload.size()), kind}, header);
  const std::array<std::span<const std::byte>, 3> parts{header, route, payload};
  if (peer.seal != nullptr) return SealAndFlush(peer, parts);
  std::size_t sent = 0;
  if (peer.unsent.empty() && !Write(peer, parts, sent)) {
    peer.muted = true;  // reading will tell why, after what the peer still said
    return;
  }
  for (const std::span<const std::byte> part : parts) {
    const std::size_t part_sent = std::min(sent, part.size());
    sent -= part_sent;
    if (part_sent < part.size()) peer.unsent.Append(part.subspan(part_sent));
  }
  LimitQueue(peer);
}

// As much as the socket takes. False when it has failed.
bool SocketMesh::Write(Peer& peer, std::span<const std::span<const std::byte>> parts,
                       std::size_t& sent) {
  std::array<iovec, 3> vectors{};
  HVL_CHECK(parts.size() == vectors.size(), "a frame has three parts");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    // sendmsg only reads, but its type does not say so.
    vectors[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};  // NOLINT
  }
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = vectors.size();
  const ssize_t result = ::sendmsg(peer.link.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (result > 0) sent = static_cast<std::size_t>(result);
  return result >= 0 || errno == EAGAIN || errno == EINTR;
}

/// Nothing in `parts`: a beat.
void SocketMesh::SealAndFlush(Peer& peer, std::span<const std::span<const std::byte>> parts) {
  const bool was_empty = peer.unsent.empty();
  peer.seal->sealer.Seal(parts, peer.unsent);
  if (was_empty) Flush(peer);
  LimitQueue(peer);
}

void SocketMesh::LimitQueue(Peer& peer) {
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
  return BeatIfDue(receiver) || delivered;
}

// After everything that has arrived was read. True when somebody was lost.
bool SocketMesh::BeatIfDue(MeshReceiver& receiver) {
  if (beats_ == nullptr) return false;
  const TimePoint now = SteadyClock().Now();
  if (!beats_->due(now)) return false;
  const std::vector<int> silent = beats_->Turn(now);
  for (const int rank : silent) Lose(At(rank), Silent(At(rank)), receiver);
  for (const int rank : tree_.neighbours())
    if (!At(rank).muted) SealAndFlush(At(rank), {});
  return !silent.empty();
}

// From its first beat on the beats tell of its end, and the kernel only if they do not.
void SocketMesh::Heard(const Peer& peer) {
  if (!beats_->Heard(peer.rank, SteadyClock().Now())) return;
  const Status limited =
      LimitSilence(peer.link.socket.get(), options_.silence_limit + kKernelGrace);
  if (!limited.ok()) HVL_LOG(logger_, kWarning, "net", "{}", limited.message());
}

SocketMesh::Received SocketMesh::Receive(Peer& peer, MeshReceiver& receiver) {
  const ssize_t got =
      ::recv(peer.link.socket.get(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Received::kNothing;
  if (got <= 0) {
    Lose(peer, EndOf(peer, got < 0 ? errno : 0), receiver);
    return Received::kEnd;
  }
  const auto fresh = std::span<const std::byte>(scratch_).first(static_cast<std::size_t>(got));
  if (peer.seal != nullptr) return ReceiveSealed(peer, fresh, receiver);
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

// What was proven before the records went wrong still counts.
SocketMesh::Received SocketMesh::ReceiveSealed(Peer& peer, std::span<const std::byte> records,
                                               MeshReceiver& receiver) {
  peer.seal->records.Append(records);
  const Result<std::size_t> opened = peer.seal->opener.Open(peer.seal->records, peer.partial);
  if (opened.ok() && *opened > 0 && beats_ != nullptr) Heard(peer);
  std::size_t consumed = 0;
  if (!Deliver(peer, peer.partial.front(), consumed, receiver)) return Received::kEnd;
  peer.partial.Consume(consumed);
  if (opened.ok()) return Received::kSome;
  Lose(peer, Corrupt(peer, opened.status().message()), receiver);
  return Received::kEnd;
}

// Handles the whole frames at the front of `bytes`. False when the peer is lost afterwards.
bool SocketMesh::Deliver(Peer& peer, std::span<const std::byte> bytes, std::size_t& consumed,
                         MeshReceiver& receiver) {
  for (;;) {
    const NextFrame next = FindFrame(bytes.subspan(consumed), kMaxFrameBytes);
    switch (next.is) {
      case NextFrame::Is::kIncomplete:
        return true;
      case NextFrame::Is::kFrame: {
        consumed += next.bytes;
        const Status taken = Take(peer, next, receiver);
        if (taken.ok()) break;
        Lose(peer, taken, receiver);
        return false;
      }
      case NextFrame::Is::kGoodbye:
        Lose(peer,
             {StatusCode::kUnavailable,
              Format("{} has left: its session was shut down", NameOf(peer)), peer.rank},
             receiver);
        return false;
      case NextFrame::Is::kCorrupt:
        Lose(peer,
             Corrupt(peer, Format("a frame of kind {} with {} bytes (at most {} are allowed)",
                                  static_cast<unsigned>(next.header.kind),
                                  next.header.payload_bytes, kMaxFrameBytes)),
             receiver);
        return false;
    }
  }
}

Status SocketMesh::Take(Peer& peer, const NextFrame& frame, MeshReceiver& receiver) {
  if (frame.header.kind == FrameKind::kRouted) return TakeRouted(peer, frame.payload, receiver);
  if (frame.header.kind == FrameKind::kLoss) return TakeLoss(peer, frame.payload, receiver);
  if (frame.header.kind == FrameKind::kNoMore) {
    if (!leaving_.Hear(peer.rank)) return Corrupt(peer, "it ends what it has ended already");
    TellNoMore();
    return Status::Ok();
  }
  receiver.OnFrame(peer.rank, frame.payload);
  return Status::Ok();
}

// For this rank, or to be passed on. It must come from where its source is, and not go back there.
Status SocketMesh::TakeRouted(Peer& peer, std::span<const std::byte> payload,
                              MeshReceiver& receiver) {
  if (payload.size() < kRouteBytes) return Corrupt(peer, "a frame without its way");
  const auto encoded = payload.first<kRouteBytes>();
  const auto [source, destination] = DecodeRoute(encoded);
  const auto is_peer = [this](int rank) {
    return rank >= 0 && rank < options_.size && rank != options_.rank;
  };
  const bool comes_right =
      tree_.spans_hosts() && is_peer(source) && tree_.next_hop(source) == peer.rank;
  const bool is_mine = destination == options_.rank;
  const bool goes_on =
      tree_.leads() && is_peer(destination) && tree_.next_hop(destination) != peer.rank;
  if (!comes_right || !(is_mine || goes_on)) {
    return Corrupt(
        peer, Format("a frame from rank {} to rank {} has no business on it", source, destination));
  }
  if (At(source).lost) return Status::Ok();
  if (is_mine) {
    receiver.OnFrame(source, payload.subspan(kRouteBytes));
  } else if (!At(destination).lost) {
    Enqueue(At(tree_.next_hop(destination)), FrameKind::kRouted, encoded,
            payload.subspan(kRouteBytes));
  }
  return Status::Ok();
}

Status SocketMesh::TakeLoss(Peer& peer, std::span<const std::byte> payload,
                            MeshReceiver& receiver) {
  const Result<LossNotice> loss = DecodeLoss(payload, options_.size);
  if (!loss.ok()) return Corrupt(peer, loss.status().message());
  for (const int rank : loss->ranks) {
    if (rank == peer.rank || rank == options_.rank || tree_.next_hop(rank) != peer.rank)
      return Corrupt(peer, Format("it tells of the end of rank {}, which is not behind it", rank));
  }
  HVL_LOG(logger_, kDebug, "net", "{} tells: {}", NameOf(peer), loss->cause.message());
  Report(*loss, peer.rank, receiver);
  return Status::Ok();
}

// Its process has ended, but a forked child may keep the socket open: there will be no end of
// stream, only an end of bytes.
void SocketMesh::DrainDeadProcess(Peer& peer, MeshReceiver& receiver) {
  while (!peer.lost) {
    if (Receive(peer, receiver) == Received::kNothing) Lose(peer, EndOf(peer, 0), receiver);
  }
}

// --- Losses -----------------------------------------------------------------------------------

void SocketMesh::CloseLink(Peer& peer) {
  peer.unsent.Consume(peer.unsent.size());
  // Closing alone does not end the watch (or the link) while a forked child holds a copy.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.link.socket.get(), nullptr);
  ::shutdown(peer.link.socket.get(), SHUT_RDWR);
  peer.link.socket.Reset();
  if (peer.link.process_fd.valid())
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.link.process_fd.get(), nullptr);
  peer.link.process_fd.Reset();
  if (beats_ != nullptr) beats_->Forget(peer.rank);
}

void SocketMesh::Lose(Peer& peer, const Status& cause, MeshReceiver& receiver) {
  HVL_LOG(logger_, kDebug, "net", "{}", cause.message());
  CloseLink(peer);
  leaving_.Lose(peer.rank);
  Report({tree_.Behind(peer.rank), cause}, peer.rank, receiver);
  TellNoMore();
}

// The others first: what the receiver sends because of the loss must not overtake the news of it.
void SocketMesh::Report(const LossNotice& loss, int teller, MeshReceiver& receiver) {
  std::vector<int> fresh;
  for (const int rank : loss.ranks) {
    if (At(rank).lost) continue;
    At(rank).lost = At(rank).muted = true;
    fresh.push_back(rank);
  }
  if (!fresh.empty()) TellOthers(loss, teller);
  const int culprit = loss.cause.culprit_rank();
  if (const auto first = std::ranges::find(fresh, culprit); first != fresh.end())
    std::rotate(fresh.begin(), first, first + 1);
  for (const int rank : fresh) {
    if (rank == culprit) {
      receiver.OnPeerLost(rank, loss.cause);
    } else {
      receiver.OnPeerLost(
          rank,
          {loss.cause.code(),
           Format("{}; rank {} was reached through it", loss.cause.message(), rank), culprit});
    }
  }
}

// News goes along the tree, away from where it came from. Ranks of this host see each other's ends
// themselves.
void SocketMesh::TellOthers(const LossNotice& loss, int teller) {
  if (!tree_.spans_hosts() || !tree_.leads()) return;
  const std::string notice = EncodeLoss(loss);
  for (Peer& peer : peers_) {
    if (peer.rank == teller || peer.lost || !tree_.is_linked(peer.rank)) continue;
    if (tree_.on_this_host(peer.rank) && tree_.on_this_host(teller)) continue;
    Enqueue(peer, FrameKind::kLoss, {}, AsBytes(notice));
  }
}

Status SocketMesh::Overflowed(const Peer& peer) const {
  return {StatusCode::kResourceExhausted,
          Format("{} does not read its control link: more than {} bytes wait for it", NameOf(peer),
                 options_.max_queued_bytes),
          peer.rank};
}

Status SocketMesh::Corrupt(const Peer& peer, std::string_view what) const {
  return {StatusCode::kInternal,
          Format("the control link to {} is corrupt: {}", NameOf(peer), what), peer.rank};
}

Status SocketMesh::Silent(const Peer& peer) const {
  const std::chrono::duration<double> limit = options_.silence_limit;
  return {StatusCode::kUnavailable,
          Format("{} has shown no sign of life for {:.1f} s: its host is down or cut off, or its "
                 "processes are stopped (HVL_HOST_TIMEOUT)",
                 NameOf(peer), limit.count()),
          peer.rank};
}

/// `error` of the failed recv, or 0 after an end of stream.
Status SocketMesh::EndOf(const Peer& peer, int error) const {
  const std::string_view where = peer.partial.empty() ? "" : ", in the middle of a message";
  const int process = peer.link.process_fd.get();
  const bool ended = process >= 0 && ProcessEnded(process, kEndOfProcessMs);
  std::string how = "closed its link without saying goodbye";
  if (ended) {
    how = DescribeEnd(peer.link.pid, process);
  } else if (error != 0 && !tree_.on_this_host(peer.rank)) {
    how = Format("is gone or cut off ({})", ErrnoText(error));
  }
  return {StatusCode::kUnavailable, Format("{} {}{}", NameOf(peer), how, where), peer.rank};
}

// --- Sleeping and closing ---------------------------------------------------------------------

// The events stay where they are (epoll reports levels, not edges) for the thread that polls. Only
// the wake event is taken, and only here: a poll that took it would rob the sleeper.
void SocketMesh::Sleep(Duration timeout) {
  if (beats_ != nullptr) timeout = std::min(timeout, beats_->Remaining(SteadyClock().Now()));
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

void SocketMesh::FinishSending() {
  if (leaving_.Finish()) TellNoMore();
}

void SocketMesh::TellNoMore() {
  for (const int rank : leaving_.TakeDue()) Enqueue(At(rank), FrameKind::kNoMore, {}, {});
}

void SocketMesh::Close() {
  if (::getpid() != owner_pid_) return;  // the links are still the parent's
  FinishSending();
  if (tree_.spans_hosts() && tree_.leads()) PassOnForOthers();
  const TimePoint deadline = SteadyClock().Now() + kCloseTimeout;
  SayGoodbye(deadline);
  AwaitEnds(deadline);
}

namespace {

// What comes for a rank that has left.
class Deaf final : public MeshReceiver {
 public:
  void OnFrame(int, std::span<const std::byte>) override {}
  void OnPeerLost(int, const Status&) override {}
};

}  // namespace

// This rank beats and watches as before, so that nobody takes it for dead, and a peer that dies
// meanwhile does not hold it up.
void SocketMesh::PassOnForOthers() {
  const bool limited = options_.silence_limit > Duration::zero();
  const TimePoint deadline =
      SteadyClock().Now() + (limited ? options_.silence_limit : kLongestStay);
  const auto done = [this] {
    return leaving_.over() &&
           std::ranges::all_of(peers_, [](const Peer& peer) { return peer.unsent.empty(); });
  };
  Deaf nobody;
  while (!done()) {
    const Duration left = deadline - SteadyClock().Now();
    if (left > Duration::zero()) {
      Poll(left, nobody);
      continue;
    }
    HVL_LOG(logger_, kWarning, "net",
            "rank {} leaves, although {} may still need it to reach others: nothing was heard that "
            "says otherwise",
            options_.rank, RanksText(leaving_.Missing()));
    return;
  }
}

void SocketMesh::SayGoodbye(TimePoint deadline) {
  for (Peer& peer : peers_) {
    if (peer.link.socket.valid()) Enqueue(peer, FrameKind::kGoodbye, {}, {});
    peer.muted = true;
  }
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

// A TCP socket that is closed while something is unread, a sign of life for instance, resets the
// connection, and the goodbye may be lost. So the other ends close first, which hear it.
void SocketMesh::AwaitEnds(TimePoint deadline) {
  std::vector<pollfd> open;
  for (const Peer& peer : peers_)
    if (peer.seal != nullptr && !peer.lost) open.push_back({peer.link.socket.get(), POLLIN, 0});
  while (!open.empty() && SteadyClock().Now() < deadline) {
    ::poll(open.data(), open.size(), PollMillis(deadline));
    std::erase_if(open, [this](const pollfd& socket) {
      if (socket.revents == 0) return false;
      const ssize_t got = ::recv(socket.fd, scratch_.data(), scratch_.size(), MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    });
  }
}

}  // namespace hvl::net
