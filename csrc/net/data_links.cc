#include "csrc/net/data_links.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"

namespace hvl::net {
namespace {

constexpr Duration kFirstRedial = std::chrono::milliseconds(2);
constexpr Duration kLongestRedial = std::chrono::milliseconds(200);
// Far fewer than the visitors that may be half open: in a flood, everybody still gets several turns
// before somebody newer pushes him out.
constexpr int kVisitorsPerLook = 16;
// A receiver may take nothing for as long as another operation keeps it busy, which is no fault.
// That a host is dead is noticed in seconds by the control links; this is the second line, where
// the system's own would be a quarter of an hour.
constexpr unsigned kUntakenDataMs = 300'000;

}  // namespace

DataLinks::DataLinks(DataPlan plan, Logger logger)
    : plan_(std::move(plan)),
      logger_(std::move(logger)),
      owner_pid_(::getpid()),
      sockets_(plan_.addresses.size()) {
  HVL_CHECK(plan_.rank >= 0 && plan_.rank < size(), "a rank outside of its world");
}

DataLinks::~DataLinks() {
  if (::getpid() != owner_pid_) return;  // a forked child only closes its copies
  // Such a child may hold them for long; this ends the connections all the same.
  for (const UniqueFd& socket : sockets_)
    if (socket.valid()) ::shutdown(socket.get(), SHUT_RDWR);
}

bool DataLinks::AllConnected(std::span<const int> peers) const {
  return std::ranges::all_of(peers, [this](int peer) { return Connected(peer); });
}

LinkIdentity DataLinks::Identity(int client_rank, int server_rank) const {
  return {plan_.job_id, plan_.generation, Channel::kData, client_rank, server_rank};
}

Status DataLinks::Connect(std::span<const int> peers, int stop_event) {
  if (AllConnected(peers)) return Status::Ok();
  const TimePoint deadline = SteadyClock().Now() + plan_.timeout;
  AddDials(peers);
  for (;;) {
    HVL_RETURN_IF_ERROR(StartDueDials());
    Wait(stop_event, deadline);
    if (Ready(stop_event)) return {StatusCode::kAborted, "told to stop while connecting"};
    HVL_RETURN_IF_ERROR(AdvanceDials());
    HVL_RETURN_IF_ERROR(AdvanceVisitors());
    HVL_RETURN_IF_ERROR(AcceptVisitors());
    if (AllConnected(peers)) return Status::Ok();
    if (SteadyClock().Now() >= deadline) return TimedOut(peers);
  }
}

Status DataLinks::Establish(int peer, UniqueFd socket) {
  if (::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUntakenDataMs,
                   sizeof kUntakenDataMs) != 0) {
    return ErrnoStatus("cannot set a TCP option");
  }
  sockets_[static_cast<std::size_t>(peer)] = std::move(socket);
  if (++connected_ + 1 == size()) plan_.listener.socket.Reset();
  return Status::Ok();
}

Status DataLinks::TimedOut(std::span<const int> peers) const {
  std::vector<int> missing;
  std::string detail;
  for (const int peer : peers)
    if (!Connected(peer)) missing.push_back(peer);
  std::ranges::sort(missing);
  for (const Dial& dial : dials_)
    if (detail.empty() && !dial.last_error.empty())
      detail = Format("; last attempt to reach rank {}: {}", dial.peer, dial.last_error);
  const auto seconds = std::chrono::duration<double>(plan_.timeout).count();
  return {StatusCode::kTimeout,
          Format("rank {} got no data connection with {} in {:.3g} s{}. If the ranks are alive, "
                 "look whether a firewall between their hosts lets TCP connections to any port "
                 "through; HVL_START_TIMEOUT allows more time",
                 plan_.rank, RanksText(missing), seconds, detail),
          missing.front()};
}

// --- Connections that this rank opens ---------------------------------------------------------

void DataLinks::AddDials(std::span<const int> peers) {
  for (const int peer : peers) {
    HVL_CHECK(peer >= 0 && peer < size() && peer != plan_.rank,
              Format("rank {} of {} connects to rank {}", plan_.rank, size(), peer));
    if (peer > plan_.rank || Connected(peer)) continue;
    if (std::ranges::find(dials_, peer, &Dial::peer) != dials_.end()) continue;
    dials_.push_back({.peer = peer, .due = SteadyClock().Now(), .backoff = kFirstRedial});
  }
}

Status DataLinks::StartDueDials() {
  const TimePoint now = SteadyClock().Now();
  for (Dial& dial : dials_) {
    if (dial.socket.valid() || dial.due > now) continue;
    auto socket = StartConnect(plan_.addresses[static_cast<std::size_t>(dial.peer)]);
    if (!socket.ok()) return DialFailed(dial, socket.status());
    if (!socket->valid()) {
      Retry(dial, "its listener is full");
      continue;
    }
    dial.socket = std::move(*socket);
    dial.handshake = Handshake::Connect(Identity(plan_.rank, dial.peer), plan_.secret);
  }
  return Status::Ok();
}

void DataLinks::Retry(Dial& dial, const std::string& why) {
  dial.socket.Reset();
  dial.handshake.reset();
  dial.last_error = why;
  dial.due = SteadyClock().Now() + dial.backoff;
  dial.backoff = std::min(2 * dial.backoff, kLongestRedial);
}

Status DataLinks::DialFailed(const Dial& dial, const Status& cause) const {
  return {cause.code(),
          Format("rank {} cannot open a data connection to rank {}: {}", plan_.rank, dial.peer,
                 cause.message()),
          dial.peer};
}

Status DataLinks::AdvanceDials() {
  for (Dial& dial : dials_) {
    if (!dial.socket.valid() || !Ready(dial.socket.get())) continue;
    Status status;
    if (!dial.handshake->opening().empty()) status = FinishConnect(dial.socket.get());
    // A rank listens until everybody is connected to it: its process has ended.
    if (status.code() == StatusCode::kUnavailable) return DialFailed(dial, status);
    if (status.ok()) status = dial.handshake->Advance(dial.socket.get());
    // A wrong secret stays wrong; a connection that was cut may have been pushed out by strangers.
    if (status.code() == StatusCode::kMismatch) return DialFailed(dial, status);
    if (!status.ok()) {
      Retry(dial, status.message());
    } else if (dial.handshake->done()) {
      HVL_RETURN_IF_ERROR(Establish(dial.peer, std::move(dial.socket)));
    }
  }
  std::erase_if(dials_, [this](const Dial& dial) { return Connected(dial.peer); });
  return Status::Ok();
}

// --- Connections that others open -------------------------------------------------------------

Status DataLinks::AdvanceVisitors() {
  const TimePoint now = SteadyClock().Now();
  Status failure;
  std::erase_if(visitors_, [this, now, &failure](Visitor& visitor) {
    // One that came while nobody served it has not used up its time if it has answered since.
    if (!Ready(visitor.socket.get())) return visitor.expires <= now;
    const Status status = visitor.handshake.Advance(visitor.socket.get());
    if (status.ok() && !visitor.handshake.done()) return false;
    const int peer = visitor.handshake.client_rank();
    if (!status.ok()) {
      // One warning is news; a flood of them would be an attack of its own.
      if (!std::exchange(warned_, true))
        HVL_LOG(logger_, kWarning, "net", "refused a data connection: {}", status.message());
    } else if (peer <= plan_.rank || peer >= size() || Connected(peer)) {
      HVL_LOG(logger_, kWarning, "net", "refused a second data connection as rank {}", peer);
    } else {
      const Status established = Establish(peer, std::move(visitor.socket));
      if (!established.ok()) failure = established;
    }
    return true;
  });
  return failure;
}

Status DataLinks::AcceptVisitors() {
  const int listener = plan_.listener.socket.get();
  if (listener < 0 || !Ready(listener)) return Status::Ok();
  const std::size_t limit = kMaxHalfOpen + sockets_.size();
  for (int accepted = 0; accepted < kVisitorsPerLook; ++accepted) {
    HVL_ASSIGN_OR_RETURN(UniqueFd socket, Accept(listener, Transport::kTcp));
    if (!socket.valid()) break;
    if (visitors_.size() == limit) visitors_.pop_front();
    visitors_.push_back({std::move(socket),
                         Handshake::Accept(Identity(kStoreRank, plan_.rank), plan_.secret),
                         SteadyClock().Now() + kHandshakeTimeout});
  }
  return Status::Ok();
}

// --- Waiting ----------------------------------------------------------------------------------

// Sleeps until something can change: sockets in progress, the listener, the stop event, time.
void DataLinks::Wait(int stop_event, TimePoint deadline) {
  TimePoint wake = deadline;
  polled_.clear();
  const auto watch = [this](int fd, short events) { polled_.push_back({fd, events, 0}); };
  watch(stop_event, POLLIN);
  if (plan_.listener.socket.valid()) watch(plan_.listener.socket.get(), POLLIN);
  for (const Dial& dial : dials_) {
    if (dial.socket.valid()) {
      watch(dial.socket.get(), dial.handshake->opening().empty() ? POLLIN : POLLOUT);
    } else {
      wake = std::min(wake, dial.due);
    }
  }
  for (const Visitor& visitor : visitors_) {
    wake = std::min(wake, visitor.expires);
    watch(visitor.socket.get(), POLLIN);
  }
  const int ready = ::poll(polled_.data(), polled_.size(), PollMillis(wake));
  HVL_CHECK(ready >= 0 || errno == EINTR, Format("poll failed: errno {}", errno));
  if (ready < 0) polled_.clear();
  std::ranges::sort(polled_, {}, &pollfd::fd);
}

bool DataLinks::Ready(int fd) const {
  const auto found = std::ranges::lower_bound(polled_, fd, {}, &pollfd::fd);
  return found != polled_.end() && found->fd == fd && found->revents != 0;
}

}  // namespace hvl::net
