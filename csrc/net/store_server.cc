#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <list>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/handshake.h"
#include "csrc/net/interfaces.h"
#include "csrc/net/process.h"
#include "csrc/net/round.h"
#include "csrc/net/silence.h"
#include "csrc/net/socket.h"
#include "csrc/net/store.h"
#include "csrc/net/store_protocol.h"

namespace hvl::net {
namespace {

constexpr std::size_t kMaxConnections = 16384;
// A proven client sends its request at once and takes its answer at once, unless it is stopped.
constexpr Duration kRequestTimeout = std::chrono::seconds(10);
constexpr Duration kAnswerTimeout = std::chrono::seconds(30);
// When no descriptors are left, connections wait in the listener's queue for this long.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
constexpr int kAcceptsPerTurn = 64;
constexpr Duration kWarningPause = std::chrono::seconds(60);
// A port that is free on one address may be taken on the next one.
constexpr int kPortAttempts = 16;

// One rank's visit: hand-shake, request, wait for the others, answer.
struct Visit {
  enum class Step : std::uint8_t { kHandshake, kRequest, kWaiting, kAnswering };

  UniqueFd socket;
  Handshake handshake;
  Step step = Step::kHandshake;
  TimePoint deadline;                         // for the present step
  std::string request;                        // as far as it was read
  JoinHeader join;                            // known when the header was read
  std::shared_ptr<const std::string> answer;  // shared by all ranks of a round
  std::size_t answered_bytes = 0;
};
using Visits = std::list<Visit>;  // stable addresses: epoll keeps pointers

class StoreServerImpl final : public StoreServer {
 public:
  StoreServerImpl(std::vector<Listener> listeners, Transport transport,
                  std::uint64_t last_generation, const Secret& secret, std::string job_id,
                  Logger logger)
      : secret_(secret),
        transport_(transport),
        job_id_(std::move(job_id)),
        logger_(std::move(logger)),
        listeners_(std::move(listeners)),
        generation_(last_generation) {
    for (const Listener& listener : listeners_) addresses_.push_back(listener.address);
  }

  ~StoreServerImpl() override { Stop(); }
  StoreServerImpl(const StoreServerImpl&) = delete;
  StoreServerImpl& operator=(const StoreServerImpl&) = delete;

  const std::vector<std::string>& addresses() const override { return addresses_; }

  void Finish() override {
    finishing_ = true;
    Stop();
  }

  Status Open() {
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    stop_event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    if (!epoll_.valid() || !stop_event_.valid())
      return ErrnoStatus("cannot create the store server's event queue");
    HVL_RETURN_IF_ERROR(Watch(EPOLL_CTL_ADD, stop_event_.get(), EPOLLIN, &stop_event_));
    for (Listener& listener : listeners_)
      HVL_RETURN_IF_ERROR(Watch(EPOLL_CTL_ADD, listener.socket.get(), EPOLLIN, &listener));
    return StartThread();
  }

 private:
  void Stop() {
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    const ssize_t written = ::write(stop_event_.get(), &one, sizeof one);
    HVL_CHECK(written == sizeof one, "cannot stop the store server");
    thread_.join();
  }

  Status Watch(int operation, int fd, std::uint32_t events, void* owner) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = owner;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) == 0) return Status::Ok();
    return ErrnoStatus("cannot watch a connection");
  }

  Status StartThread() {
    // Signals are for the launcher's own threads.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    Status status;
    try {
      thread_ = std::thread([this] { Serve(); });
      ::pthread_setname_np(thread_.native_handle(), "hvl-store");
    } catch (const std::system_error& error) {
      status = {StatusCode::kResourceExhausted,
                Format("cannot start the store server's thread: {}", error.what())};
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status;
  }

  void Serve() {
    std::array<epoll_event, 64> events;
    for (;;) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                     NextTimeoutMs());
      HVL_CHECK(count >= 0 || errno == EINTR, Format("epoll_wait failed: errno {}", errno));
      const auto happened = std::span(events).first(static_cast<std::size_t>(std::max(count, 0)));
      visited_.clear();
      for (const epoll_event& event : happened) {
        if (event.data.ptr == &stop_event_) {
          if (!finishing_) return;
          EndAllButAnswers();
        } else if (IsListener(event.data.ptr)) {
          visited_.push_back(static_cast<Listener*>(event.data.ptr));
        } else {
          Continue(*static_cast<Visit*>(event.data.ptr));
        }
      }
      EndOverdueVisits();
      // Ended visits were kept until no event of this batch can refer to them.
      visits_.remove_if([](const Visit& visit) { return !visit.socket.valid(); });
      if (!listeners_.front().socket.valid()) {
        if (visits_.empty()) return;
        continue;
      }
      // Newcomers last: a rank that died and came again has left its place by then.
      for (const Listener* listener : visited_) AcceptVisitors(*listener);
    }
  }

  bool IsListener(const void* owner) const {
    return std::ranges::any_of(listeners_, [owner](const Listener& own) { return &own == owner; });
  }

  // A visit that is ended here starts again with the next server of this name, which can begin at
  // once.
  void EndAllButAnswers() {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stop_event_.get(), nullptr);
    for (Listener& listener : listeners_) {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.socket.get(), nullptr);
      ::shutdown(listener.socket.get(), SHUT_RDWR);  // a forked child may hold a copy
      listener.socket.Reset();
    }
    paused_ = false;
    for (Visit& visit : visits_) {
      if (visit.socket.valid() && visit.step != Visit::Step::kAnswering) End(visit);
    }
  }

  int NextTimeoutMs() {
    TimePoint next = TimePoint::max();
    if (paused_) next = accept_again_;
    for (const Visit& visit : visits_) next = std::min(next, visit.deadline);
    return next == TimePoint::max() ? -1 : PollMillis(next);
  }

  void AcceptVisitors(const Listener& listener) {
    for (int accepted = 0; accepted < kAcceptsPerTurn && !paused_; ++accepted) {
      auto socket = Accept(listener.socket.get(), transport_);
      if (socket.ok() && !socket->valid()) return;
      if (!socket.ok() || visits_.size() >= kMaxConnections) {
        HVL_LOG(logger_, kWarning, "net", "the store takes no more connections for now: {}",
                socket.ok() ? Format("{} are open", visits_.size()) : socket.status().message());
        PauseAccepting(true);
        return;
      }
      if (CountHalfOpen() >= kMaxHalfOpen) EndOldestHalfOpen();
      visits_.push_back({.socket = std::move(*socket),
                         .handshake = Handshake::Accept({.job_id = job_id_,
                                                         .generation = 0,
                                                         .channel = Channel::kStore,
                                                         .client_rank = 0,
                                                         .server_rank = kStoreRank},
                                                        secret_),
                         .deadline = SteadyClock().Now() + kHandshakeTimeout,
                         .request = {},
                         .join = {},
                         .answer = {}});
      Visit& visit = visits_.back();
      if (!Watch(EPOLL_CTL_ADD, visit.socket.get(), EPOLLIN, &visit).ok()) visits_.pop_back();
    }
  }

  void PauseAccepting(bool pause) {
    paused_ = pause;
    accept_again_ = SteadyClock().Now() + kAcceptPause;
    for (Listener& listener : listeners_) {
      const Status status =
          Watch(EPOLL_CTL_MOD, listener.socket.get(), pause ? 0U : EPOLLIN, &listener);
      HVL_CHECK(status.ok(), status.message());
    }
  }

  std::size_t CountHalfOpen() const {
    return static_cast<std::size_t>(
        std::ranges::count(visits_, Visit::Step::kHandshake, &Visit::step));
  }
  void EndOldestHalfOpen() {
    const auto oldest = std::ranges::find(visits_, Visit::Step::kHandshake, &Visit::step);
    if (oldest == visits_.end()) return;
    End(*oldest);
    visits_.erase(oldest);
  }

  // Moves a visit on after its socket became ready.
  void Continue(Visit& visit) {
    if (!visit.socket.valid()) return;  // ended by another event of this batch
    switch (visit.step) {
      case Visit::Step::kHandshake: {
        const Status status = visit.handshake.Advance(visit.socket.get());
        if (!status.ok()) return Refuse(visit, status);
        if (!visit.handshake.done()) return;
        visit.step = Visit::Step::kRequest;
        visit.deadline = SteadyClock().Now() + kRequestTimeout;
        return ReadRequest(visit);
      }
      case Visit::Step::kRequest:
        return ReadRequest(visit);
      case Visit::Step::kWaiting:
        return Leave(visit);
      case Visit::Step::kAnswering:
        return WriteAnswer(visit);
    }
  }

  // A rank that waits says nothing; this is its end, or nonsense, or the silence of its host. Who
  // has ended can be started again; who is lost with his host is not worth waiting for.
  void Leave(Visit& visit) {
    const bool is_silent = IsSilence(TakeError(visit.socket.get()));
    const JoinHeader join = visit.join;
    round_.Leave(join.rank);
    End(visit);
    if (is_silent) EndRound(SilentHost(join.rank, "joining", join.silence_limit));
  }

  // One warning is news; a flood of them would be an attack of its own.
  void Refuse(Visit& visit, const Status& why) {
    End(visit);
    if (why.code() != StatusCode::kMismatch) return;
    ++refused_;
    const TimePoint now = SteadyClock().Now();
    if (now < warn_again_) return;
    HVL_LOG(logger_, kWarning, "net", "the store refused a connection: {}{}", why.message(),
            refused_ == 1 ? "" : Format("; {} since the last warning", refused_));
    warn_again_ = now + kWarningPause;
    refused_ = 0;
  }

  // Closing alone would leave the socket watched and the client waiting while a child that the
  // launcher has just forked holds a copy.
  void End(Visit& visit) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, visit.socket.get(), nullptr);
    ::shutdown(visit.socket.get(), SHUT_RDWR);
    visit.socket.Reset();
  }

  void ReadRequest(Visit& visit) {
    for (;;) {
      const bool header_known = visit.request.size() >= kJoinHeaderBytes;
      const std::size_t wanted = kJoinHeaderBytes + (header_known ? visit.join.blob_bytes : 0);
      const std::size_t have = visit.request.size();
      if (header_known && have == wanted) return Enter(visit);
      visit.request.resize(std::min(wanted, have + kReadBytes));
      const ssize_t got = ::recv(visit.socket.get(), visit.request.data() + have,
                                 visit.request.size() - have, MSG_DONTWAIT);
      const int error = errno;
      visit.request.resize(have + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      if (got < 0 && (error == EAGAIN || error == EINTR)) return;
      if (got <= 0) return End(visit);
      if (header_known || visit.request.size() < kJoinHeaderBytes) continue;
      const auto header = AsBytes(visit.request).first<kJoinHeaderBytes>();
      auto join = DecodeJoinHeader(header);
      if (join.ok() && join->rank != visit.handshake.client_rank())
        join = Status(StatusCode::kInternal, "the request is for another rank than the hand-shake");
      if (!join.ok()) return Answer(visit, join.status());
      visit.join = *join;
    }
  }

  void Enter(Visit& visit) {
    const JoinHeader& join = visit.join;
    const Status entered =
        round_.Enter(join.rank, join.size, visit.request.substr(kJoinHeaderBytes));
    visit.request = {};
    visit.step = Visit::Step::kWaiting;
    visit.deadline = SteadyClock().Now() + join.timeout;
    if (!entered.ok()) return EndRound(entered);
    LimitSilenceOf(visit, join.silence_limit);
    if (round_.complete()) EndRound(Rendezvous{++generation_, round_.TakeBlobs()});
  }

  // One that cannot be limited is waited for as long as it has asked for.
  void LimitSilenceOf(const Visit& visit, Duration limit) const {
    if (transport_ != Transport::kTcp || visit.join.silence_limit == Duration::zero()) return;
    const Status limited = LimitSilence(visit.socket.get(), limit);
    if (!limited.ok()) HVL_LOG(logger_, kWarning, "net", "{}", limited.message());
  }

  // Gives everybody who waits the same answer and starts a new round.
  void EndRound(const Result<Rendezvous>& outcome) {
    const auto answer = std::make_shared<const std::string>(EncodeAnswer(outcome));
    round_ = Round();
    for (Visit& visit : visits_)
      if (visit.socket.valid() && visit.step == Visit::Step::kWaiting) StartAnswer(visit, answer);
  }

  void Answer(Visit& visit, const Status& status) {
    StartAnswer(visit, std::make_shared<const std::string>(EncodeAnswer(status)));
  }

  void StartAnswer(Visit& visit, std::shared_ptr<const std::string> answer) {
    visit.step = Visit::Step::kAnswering;
    visit.deadline = SteadyClock().Now() + kAnswerTimeout;
    LimitSilenceOf(visit, kAnswerTimeout);  // a rank that is stopped takes no long answer
    visit.answer = std::move(answer);
    WriteAnswer(visit);
  }

  void WriteAnswer(Visit& visit) {
    while (visit.answered_bytes < visit.answer->size()) {
      const ssize_t sent =
          ::send(visit.socket.get(), visit.answer->data() + visit.answered_bytes,
                 visit.answer->size() - visit.answered_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) {
        if (!Watch(EPOLL_CTL_MOD, visit.socket.get(), EPOLLOUT, &visit).ok()) End(visit);
        return;
      }
      if (sent < 0) break;
      visit.answered_bytes += static_cast<std::size_t>(sent);
    }
    End(visit);
  }

  void EndOverdueVisits() {
    const TimePoint now = SteadyClock().Now();
    if (paused_ && accept_again_ <= now) PauseAccepting(false);
    for (Visit& visit : visits_) {
      if (!visit.socket.valid() || visit.deadline > now) continue;
      if (visit.step != Visit::Step::kWaiting) {
        End(visit);
        continue;
      }
      const Status late = JoinTimeout(visit.join.rank, visit.join.size, round_.MissingRanks());
      round_.Leave(visit.join.rank);
      Answer(visit, late);
    }
  }

  static constexpr std::size_t kReadBytes = 64 << 10;

  // Fixed once Open has returned.
  const Secret secret_;
  const Transport transport_;
  const std::string job_id_;
  const Logger logger_;
  std::vector<std::string> addresses_;
  UniqueFd epoll_;
  UniqueFd stop_event_;
  std::thread thread_;
  std::atomic<bool> finishing_ = false;  // set before stop_event_

  // Owned by the thread hvl-store, once it runs.
  std::vector<Listener> listeners_;  // invalid sockets = finishing
  std::vector<Listener*> visited_;   // those with newcomers
  Visits visits_;                    // oldest first; an invalid socket = ended
  Round round_;
  std::uint64_t generation_;  // of the last rendezvous
  bool paused_ = false;       // not accepting
  TimePoint accept_again_;
  std::uint64_t refused_ = 0;  // connections, since the last warning
  TimePoint warn_again_{};
};

std::uint64_t ClockGeneration() {
  return static_cast<std::uint64_t>(SteadyClock().Now().time_since_epoch().count());
}

Result<std::unique_ptr<StoreServer>> Serve(std::vector<Listener> listeners, Transport transport,
                                           std::uint64_t last_generation, const Secret& secret,
                                           const std::string& job_id, Logger logger) {
  HVL_RETURN_IF_ERROR(CheckJobId(job_id));
  auto server = std::make_unique<StoreServerImpl>(std::move(listeners), transport, last_generation,
                                                  secret, job_id, std::move(logger));
  HVL_RETURN_IF_ERROR(server->Open());
  return std::unique_ptr<StoreServer>(std::move(server));
}

/// All of them with one port, where `port` is 0 the first's. No listeners: the port is taken.
Result<std::vector<Listener>> ListenAtAll(std::span<const SocketAddress> addresses,
                                          std::uint16_t port) {
  std::vector<Listener> listeners;
  for (const SocketAddress& address : addresses) {
    HVL_ASSIGN_OR_RETURN(Listener listener, ListenAt(WithPort(address, port)));
    if (!listener.socket.valid()) return std::vector<Listener>();
    if (port == 0) {
      HVL_ASSIGN_OR_RETURN(const HostPort bound, ParseTcp(listener.address));
      port = bound.port;
    }
    listeners.push_back(std::move(listener));
  }
  return listeners;
}

/// The addresses of `host` that belong to this machine.
Result<std::vector<SocketAddress>> OwnAddresses(const std::string& host) {
  HVL_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, LookUp({.host = host, .port = 1}));
  std::erase_if(addresses, [](const SocketAddress& address) { return !IsOwnAddress(address); });
  if (!addresses.empty()) return addresses;
  return Status(
      StatusCode::kInvalidArgument,
      Format("cannot listen on '{}': that is no address of this host ({})", host, HostName()));
}

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::Start(const Secret& secret,
                                                        const std::string& job_id, Logger logger) {
  std::vector<Listener> listeners(1);
  HVL_ASSIGN_OR_RETURN(listeners.front(), Listen(Transport::kUnix));
  return Serve(std::move(listeners), Transport::kUnix, 0, secret, job_id, std::move(logger));
}

// Generations grow from server to server of a name (or of a port that clients know), because the
// host's clock does.
Result<std::unique_ptr<StoreServer>> StoreServer::StartAt(std::string_view name,
                                                          const Secret& secret,
                                                          const std::string& job_id,
                                                          Logger logger) {
  std::vector<Listener> listeners(1);
  HVL_ASSIGN_OR_RETURN(listeners.front(), ListenAt(name));
  if (!listeners.front().socket.valid()) return std::unique_ptr<StoreServer>();
  return Serve(std::move(listeners), Transport::kUnix, ClockGeneration(), secret, job_id,
               std::move(logger));
}

Result<std::unique_ptr<StoreServer>> StoreServer::StartTcp(std::span<const std::string> hosts,
                                                           std::uint16_t port, const Secret& secret,
                                                           const std::string& job_id,
                                                           Logger logger) {
  HVL_CHECK(!hosts.empty(), "a server on TCP needs an address");
  std::vector<SocketAddress> addresses;
  for (const std::string& host : hosts) {
    HVL_ASSIGN_OR_RETURN(const std::vector<SocketAddress> own, OwnAddresses(host));
    for (const SocketAddress& address : own) {
      const bool is_new = std::ranges::none_of(addresses, [&address](const SocketAddress& known) {
        return NumericHost(known) == NumericHost(address);
      });
      if (is_new) addresses.push_back(address);
    }
  }
  for (int attempt = 0; attempt < (port == 0 ? kPortAttempts : 1); ++attempt) {
    HVL_ASSIGN_OR_RETURN(std::vector<Listener> listeners, ListenAtAll(addresses, port));
    if (listeners.empty()) continue;
    return Serve(std::move(listeners), Transport::kTcp, port == 0 ? 0 : ClockGeneration(), secret,
                 job_id, std::move(logger));
  }
  return std::unique_ptr<StoreServer>();
}

}  // namespace hvl::net
