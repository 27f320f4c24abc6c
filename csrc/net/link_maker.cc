#include "csrc/net/link_maker.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"

namespace hvl::net {
namespace {

constexpr Duration kFirstRedial = std::chrono::milliseconds(2);
constexpr Duration kLongestRedial = std::chrono::milliseconds(200);
// Far fewer than the visitors that may be half open: in a flood, everybody still gets several turns
// before somebody newer pushes him out.
constexpr int kVisitorsPerTurn = 16;

}  // namespace

LinkMaker::LinkMaker(LinkPlan plan, LinkOwner& owner, const Logger& logger)
    : plan_(std::move(plan)), owner_(owner), logger_(logger) {
  HVL_CHECK(plan_.rank >= 0 && plan_.rank < size(), "a rank outside of its world");
}

LinkIdentity LinkMaker::Identity(int client_rank, int server_rank) const {
  return {plan_.job_id, plan_.generation, plan_.channel, client_rank, server_rank};
}

Status LinkMaker::Turn(std::span<const pollfd> watched, TimePoint deadline) {
  HVL_RETURN_IF_ERROR(StartDue());
  Wait(watched, deadline);
  for (Outgoing& dial : dials_)
    if (dial.socket.valid() && Ready(dial.socket.get())) HVL_RETURN_IF_ERROR(Advance(dial));
  std::erase_if(dials_, [](const Outgoing& dial) { return dial.taken; });
  HVL_RETURN_IF_ERROR(AdvanceVisitors());
  return AcceptVisitors();
}

std::string LinkMaker::LastFailure() const {
  for (const Outgoing& dial : dials_) {
    if (dial.last_error.empty()) continue;
    return Format("; last attempt to reach rank {} at {}: {}", dial.peer, AddressOf(dial.peer),
                  dial.last_error);
  }
  return {};
}

// --- Connections that this rank opens ---------------------------------------------------------

void LinkMaker::Dial(int peer) {
  HVL_CHECK(peer >= 0 && peer < plan_.rank,
            Format("rank {} of {} connects to rank {}", plan_.rank, size(), peer));
  if (std::ranges::find(dials_, peer, &Outgoing::peer) != dials_.end()) return;
  dials_.push_back({.peer = peer,
                    .due = SteadyClock().Now(),
                    .backoff = kFirstRedial,
                    .unanswered = Unanswered(plan_.silence_limit)});
}

Status LinkMaker::StartDue() {
  const TimePoint now = SteadyClock().Now();
  for (Outgoing& dial : dials_) {
    if (dial.socket.valid() && dial.unanswered.attempt_end() <= now) Retry(dial, "no answer");
    if (!dial.socket.valid() && dial.due <= now) HVL_RETURN_IF_ERROR(Start(dial, now));
  }
  return Status::Ok();
}

Status LinkMaker::Start(Outgoing& dial, TimePoint now) {
  if (dial.unanswered.TooLong(now)) return SilentHost(dial.peer, "connecting", plan_.silence_limit);
  auto socket = StartConnect(AddressOf(dial.peer));
  if (socket.status().code() == StatusCode::kTimeout) {
    dial.unanswered.Ask(now);
    Retry(dial, socket.status().message());
  } else if (!socket.ok()) {
    return Failed(dial, socket.status());
  } else if (!socket->valid()) {
    Retry(dial, "its listener is full");
  } else {
    dial.unanswered.Ask(now);
    dial.socket = std::move(*socket);
    dial.handshake = Handshake::Connect(Identity(plan_.rank, dial.peer), plan_.secret);
    if (dial.unanswered.judges())
      HVL_RETURN_IF_ERROR(LimitSilence(dial.socket.get(), plan_.silence_limit));
  }
  return Status::Ok();
}

Status LinkMaker::Advance(Outgoing& dial) {
  if (!dial.handshake->opening().empty()) {
    const Status reached = FinishConnect(dial.socket.get());
    if (reached.code() == StatusCode::kUnavailable) return Failed(dial, reached);
    if (!reached.ok()) {
      Retry(dial, reached.message());
      return Status::Ok();
    }
    dial.unanswered.Answered();
  } else if (dial.unanswered.judges() && IsSilence(TakeError(dial.socket.get()))) {
    return SilentHost(dial.peer, "connecting", plan_.silence_limit);
  }
  const Status status = dial.handshake->Advance(dial.socket.get());
  // A wrong secret stays wrong; a connection that was cut may have been pushed out by strangers.
  if (status.code() == StatusCode::kMismatch) return Failed(dial, status);
  if (!status.ok()) {
    Retry(dial, status.message());
  } else if (dial.handshake->done()) {
    dial.taken = true;
    return owner_.Take(dial.peer, std::move(dial.socket), *dial.handshake);
  }
  return Status::Ok();
}

Status LinkMaker::Hurry(int peer) {
  const auto dial = std::ranges::find(dials_, peer, &Outgoing::peer);
  if (dial == dials_.end() || !dial->socket.valid()) return Status::Ok();
  HVL_RETURN_IF_ERROR(Advance(*dial));
  if (dial->taken) dials_.erase(dial);
  return Status::Ok();
}

void LinkMaker::Retry(Outgoing& dial, const std::string& why) {
  dial.socket.Reset();
  dial.handshake.reset();
  dial.last_error = why;
  dial.due = SteadyClock().Now() + dial.backoff;
  dial.backoff = std::min(2 * dial.backoff, kLongestRedial);
}

Status LinkMaker::Failed(const Outgoing& dial, const Status& cause) const {
  const bool refused = cause.code() == StatusCode::kUnavailable;
  return {cause.code(),
          Format("rank {} cannot open a {} to rank {} at {}{}: {}", plan_.rank, plan_.noun,
                 dial.peer, AddressOf(dial.peer),
                 refused ? ", which has joined but does not listen any more" : "", cause.message()),
          dial.peer};
}

// --- Connections that others open -------------------------------------------------------------

Status LinkMaker::AdvanceVisitors() {
  const TimePoint now = SteadyClock().Now();
  Status failure;
  std::erase_if(visitors_, [this, now, &failure](Visitor& visitor) {
    // One that came while nobody served it has not used up its time if it has answered since.
    if (!Ready(visitor.socket.get())) return visitor.expires <= now;
    const Status status = visitor.handshake.Advance(visitor.socket.get());
    if (status.ok() && !visitor.handshake.done()) return false;
    const int peer = visitor.handshake.client_rank();
    if (!status.ok()) {
      // Who closes has left, comes again, or says himself that this rank has another secret.
      // One warning is news; a flood of them would be an attack of its own.
      const bool refused = status.code() != StatusCode::kUnavailable;
      if (refused && visitor.handshake.begun() && !std::exchange(warned_, true))
        HVL_LOG(logger_, kWarning, "net", "refused a {}: {}", plan_.noun, status.message());
    } else if (peer <= plan_.rank || peer >= size() || !owner_.Expects(peer)) {
      HVL_LOG(logger_, kWarning, "net", "refused a second {} as rank {}", plan_.noun, peer);
    } else {
      const Status taken = owner_.Take(peer, std::move(visitor.socket), visitor.handshake);
      if (!taken.ok()) failure = taken;
    }
    return true;
  });
  return failure;
}

Status LinkMaker::AcceptVisitors() {
  const int listener = plan_.listener.socket.get();
  if (listener < 0 || !Ready(listener)) return Status::Ok();
  HVL_ASSIGN_OR_RETURN(const Transport transport, TransportOf(plan_.listener.address));
  const std::size_t limit = kMaxHalfOpen + plan_.addresses.size();
  for (int accepted = 0; accepted < kVisitorsPerTurn; ++accepted) {
    HVL_ASSIGN_OR_RETURN(UniqueFd socket, Accept(listener, transport));
    if (!socket.valid()) break;
    if (visitors_.size() == limit) visitors_.pop_front();
    visitors_.push_back({std::move(socket),
                         Handshake::Accept(Identity(kStoreRank, plan_.rank), plan_.secret),
                         SteadyClock().Now() + kHandshakeTimeout});
  }
  return Status::Ok();
}

// --- Waiting ----------------------------------------------------------------------------------

void LinkMaker::Wait(std::span<const pollfd> watched, TimePoint deadline) {
  TimePoint wake = deadline;
  polled_.assign(watched.begin(), watched.end());
  const auto watch = [this](int fd, short events) { polled_.push_back({fd, events, 0}); };
  if (plan_.listener.socket.valid()) watch(plan_.listener.socket.get(), POLLIN);
  for (const Outgoing& dial : dials_) {
    if (dial.socket.valid()) {
      watch(dial.socket.get(), dial.handshake->opening().empty() ? POLLIN : POLLOUT);
      wake = std::min(wake, dial.unanswered.attempt_end());
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

bool LinkMaker::Ready(int fd) const {
  const auto found = std::ranges::lower_bound(polled_, fd, {}, &pollfd::fd);
  return found != polled_.end() && found->fd == fd && found->revents != 0;
}

}  // namespace hvl::net
