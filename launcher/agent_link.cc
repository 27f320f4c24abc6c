#include "launcher/agent_link.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/net/address.h"
#include "launcher/errors.h"
#include "launcher/seconds.h"
#include "launcher/supervision.h"

namespace hvl::launcher {
namespace {

constexpr std::size_t kLinkReadBytes = 65536;
constexpr std::size_t kMaxWordBytes = 8192;
constexpr std::size_t kMaxWordLines = 6;
/// Behind this much a repeated order is left out.
constexpr std::size_t kMaxRepeatedBytes = 65536;
// After the stream has ended its starter may take so long to say why.
constexpr Duration kLastWordsLimit = std::chrono::milliseconds(500);
constexpr Duration kStarterEndLimit = std::chrono::seconds(2);

Status BreaksRules(std::string_view what) {
  return {StatusCode::kMismatch, Format("its agent breaks the rules: {}", what)};
}

bool MakeNonBlocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

struct Pipe {
  net::UniqueFd reader;
  net::UniqueFd writer;
};

std::optional<Pipe> MakePipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  return Pipe{net::UniqueFd(ends[0]), net::UniqueFd(ends[1])};
}

}  // namespace

AgentLink::AgentLink(std::uint32_t index, std::string host, Poller* poller, RankListener* listener,
                     std::function<void(int signo)> on_signal)
    : index_(index),
      host_(std::move(host)),
      poller_(poller),
      listener_(listener),
      on_signal_(std::move(on_signal)),
      inlet_(std::nullopt) {}

AgentLink::~AgentLink() {
  if (starter_ == 0) return;
  ::kill(starter_, SIGKILL);
  ::waitpid(starter_, nullptr, 0);
}

Refusal AgentLink::Call(const Starter& starter, EnvBlock env, const ProcessDefaults& defaults) {
  std::optional<Pipe> to = MakePipe();
  std::optional<Pipe> from = MakePipe();
  std::optional<Pipe> words = MakePipe();
  if (!to || !from || !words) {
    return {kExitLauncherError, Format("no pipe: {}; see ulimit -n", ErrnoText(errno))};
  }
  const SpawnRequest request{.path = starter.program,
                             .arguments = starter.arguments,
                             .env = &env,
                             .stdin_fd = to->reader.get(),
                             .stdout_fd = from->writer.get(),
                             .stderr_fd = words->writer.get(),
                             .processors = {}};
  Child child;
  Refusal refusal = Spawn(request, defaults, &child);
  if (refusal.exit_code != 0) return refusal;
  starter_ = child.pid;
  starter_name_ = starter.arguments.front().substr(starter.arguments.front().rfind('/') + 1);
  words_from_ = std::move(words->reader);
  Open(std::move(from->reader), std::move(to->writer), std::nullopt);
  const bool watched =
      MakeNonBlocking(words_from_.get()) &&
      poller_->WatchReadable(words_from_.get(), {Token::Kind::kAgentError, index_});
  HVL_CHECK(watched, "a pipe can be watched");
  return {};
}

Status AgentLink::Take(net::UniqueFd connection, const std::optional<net::LinkKeys>& keys) {
  net::UniqueFd copy(::fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return Invalid(Format("no descriptor: {}", ErrnoText(errno)));
  net::SocketAddress peer;
  peer.bytes = sizeof peer.storage;
  if (::getpeername(connection.get(), peer.get(), &peer.bytes) == 0 && peer.family() != AF_UNIX) {
    peer_address_ = net::NumericHost(peer);
  }
  Open(std::move(connection), std::move(copy), keys);
  return Status::Ok();
}

void AgentLink::Open(net::UniqueFd in, net::UniqueFd out,
                     const std::optional<net::LinkKeys>& keys) {
  const bool watched = MakeNonBlocking(in.get()) && MakeNonBlocking(out.get()) &&
                       poller_->WatchReadable(in.get(), {Token::Kind::kAgentIn, index_});
  HVL_CHECK(watched, "pipes and sockets can be watched");
  std::string beat;
  Encode(HeadFrame(Beat()), &beat);
  from_agent_ = std::move(in);
  outlet_ = std::make_shared<FrameOutlet>(std::move(out), std::move(beat), SendingKey(keys));
  inlet_ = FrameInlet(ReceivingKey(keys));
  answer_by_ = SteadyClock().Now() + kAnswerLimit;
  state_ = State::kCalling;
}

void AgentLink::Order(const StartOrder& order) {
  HVL_CHECK(state_ == State::kReady);
  for (const StartOrder::Rank& rank : order.ranks) ranks_.push_back({.number = rank.rank});
  state_ = State::kOrdered;
  SendIfInJob(order);
  for (const bool is_stderr : {false, true}) {
    if (!reading_.at(is_stderr ? 1 : 0)) SendIfInJob(ReadingOrder{is_stderr, false});
  }
}

void AgentLink::Order(const ExamineOrder& order) {
  HVL_CHECK(state_ == State::kReady);
  state_ = State::kOrdered;
  SendIfInJob(order);
}

void AgentLink::SendIfInJob(const HeadFrame& frame) {
  if (!in_job() && state_ != State::kEmpty) return;
  std::string bytes;
  Encode(frame, &bytes);
  outlet_->Send(bytes);
}

void AgentLink::SignalRanks(int signo) { SendIfInJob(SignalOrder{signo, false}); }

void AgentLink::SignalLeftovers(int signo) { SendIfInJob(SignalOrder{signo, true}); }

void AgentLink::KillAll() {
  if (state_ <= State::kReady) return Dismiss();
  if (in_job() && outlet_->backlog_bytes() < kMaxRepeatedBytes) SendIfInJob(KillOrder());
}

void AgentLink::SetReading(bool is_stderr, bool on) {
  reading_.at(is_stderr ? 1 : 0) = on;
  SendIfInJob(ReadingOrder{is_stderr, on});
}

void AgentLink::Dismiss() {
  if (state_ >= State::kFinished) return;
  // One that has answered sees the end of its stream; the others may be waiting for a network.
  if (starter_ != 0 && state_ == State::kCalling) ::kill(starter_, SIGKILL);
  state_ = State::kFinished;
  CloseStream();
}

void AgentLink::OnReady(Token token) {
  switch (token.kind) {
    case Token::Kind::kAgentIn:
      return ReadFrames();
    case Token::Kind::kAgentOut:
      if (outlet_) outlet_->Flush();
      return;
    case Token::Kind::kAgentError:
      return ReadWords();
    default:
      return;
  }
}

void AgentLink::ReadFrames() {
  if (!from_agent_.valid()) return;
  std::array<char, kLinkReadBytes> bytes{};
  const ssize_t count = ::read(from_agent_.get(), bytes.data(), bytes.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) {
    return StreamBroke(count == 0 ? "the connection to it was closed"
                                  : Format("the connection to it broke: {}", ErrnoText(errno)));
  }
  heard_at_ = SteadyClock().Now();
  Status status = inlet_.Feed({bytes.data(), static_cast<std::size_t>(count)}, &reader_);
  if (status.ok()) status = HandleFrames();
  if (!status.ok()) Lose(status.message());
}

Status AgentLink::HandleFrames() {
  HVL_ASSIGN_OR_RETURN(const bool greeted, reader_.Greeted());
  if (!greeted) return Status::Ok();
  while (state_ < State::kFinished) {
    HVL_ASSIGN_OR_RETURN(const std::optional<AgentFrame> frame, reader_.NextOfAgent());
    if (!frame) return Status::Ok();
    HVL_RETURN_IF_ERROR(Handle(*frame));
  }
  return Status::Ok();
}

Status AgentLink::Handle(const AgentFrame& frame) {
  if (const auto* hello = std::get_if<Hello>(&frame)) {
    if (state_ != State::kCalling) return BreaksRules("it says hello twice");
    hello_ = *hello;
    if (host_.empty()) host_ = hello->host_name.empty() ? "unnamed" : hello->host_name;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    clock_ahead_ = std::chrono::nanoseconds(hello->nanoseconds_since_1970) - now;
    state_ = State::kReady;
    outlet_->Send(Greeting());
    return Status::Ok();
  }
  if (state_ == State::kCalling) return BreaksRules("it does not begin with hello");
  if (std::holds_alternative<Beat>(frame)) return Status::Ok();
  if (const auto* started = std::get_if<Started>(&frame)) return HandleStarted(*started);
  if (const auto* wrote = std::get_if<Wrote>(&frame)) {
    if (FindRank(wrote->rank) == nullptr || wrote->bytes.size() > kMaxWroteBytes) {
      return BreaksRules(Format("{} bytes of rank {}", wrote->bytes.size(), wrote->rank));
    }
    if (wrote->bytes.empty()) {
      listener_->StreamEnded(wrote->rank, wrote->is_stderr);
    } else {
      listener_->RankWrote(wrote->rank, wrote->is_stderr, wrote->bytes);
    }
  } else if (const auto* ended = std::get_if<Ended>(&frame)) {
    return HandleEnded(ended->exit);
  } else if (std::holds_alternative<LeftoverGone>(frame)) {
    listener_->LeftoverEnded();
  } else if (const auto* found = std::get_if<LeftoverFound>(&frame)) {
    listener_->LeftoverSignalled(found->process);
  } else if (const auto* signalled = std::get_if<Signalled>(&frame)) {
    on_signal_(signalled->signo);
  } else if (const auto* examined = std::get_if<Examined>(&frame)) {
    if (state_ != State::kOrdered) return BreaksRules("an answer to no question");
    examined_ = *examined;
    state_ = State::kExamined;
  } else if (std::holds_alternative<NobodyLeft>(frame)) {
    const bool all = std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
      return rank.ended || state_ == State::kRefused;
    });
    if (!all) return BreaksRules("nobody is left, and not all ranks have ended");
    state_ = State::kEmpty;
  } else if (const auto* finished = std::get_if<Finished>(&frame)) {
    if (state_ != State::kEmpty) return BreaksRules("it has finished before its ranks");
    unkillable_ = finished->unkillable;
    state_ = State::kFinished;
    CloseStream();
  }
  return Status::Ok();
}

Status AgentLink::HandleStarted(const Started& started) {
  const bool refused = started.exit_code != 0;
  if (state_ != State::kOrdered || (!refused && started.pids.size() != ranks_.size())) {
    return BreaksRules("it has started what was not ordered");
  }
  started_ = started;
  state_ = refused ? State::kRefused : State::kRunning;
  for (std::size_t i = 0; i < started.pids.size(); ++i) ranks_[i].pid = started.pids[i];
  return Status::Ok();
}

Status AgentLink::HandleEnded(const RankExit& exit) {
  Rank* rank = FindRank(exit.rank);
  if (rank == nullptr || rank->ended) return BreaksRules(Format("rank {} ends", exit.rank));
  rank->ended = true;
  listener_->RankEnded(exit);
  return Status::Ok();
}

AgentLink::Rank* AgentLink::FindRank(int number) {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(),
                                  [number](const Rank& rank) { return rank.number == number; });
  return found == ranks_.end() ? nullptr : &*found;
}

void AgentLink::ReadWords() {
  if (!words_from_.valid()) return;
  std::array<char, kMaxWordBytes> bytes{};
  const ssize_t count = ::read(words_from_.get(), bytes.data(), bytes.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) {
    poller_->Forget(words_from_.get());
    words_from_.Reset();
    return;
  }
  words_.append(bytes.data(), static_cast<std::size_t>(count));
  if (words_.size() > kMaxWordBytes) words_.erase(0, words_.size() - kMaxWordBytes);
}

void AgentLink::Reap() {
  if (starter_ == 0) return;
  int status = 0;
  if (::waitpid(starter_, &status, WNOHANG) != starter_) return;
  starter_ = 0;
  starter_end_ = ExitStatus::FromWait(status);
}

std::optional<TimePoint> AgentLink::deadline() const {
  if (state_ >= State::kFinished) return starter_ == 0 ? std::nullopt : std::optional(close_by_);
  if (state_ == State::kWaiting) return std::nullopt;
  if (!broken_.empty()) return close_by_;
  if (state_ == State::kCalling) return answer_by_;
  return heard_at_ + kSilenceLimit;
}

void AgentLink::OnTime(TimePoint now) {
  if (state_ >= State::kFinished) {
    if (starter_ != 0 && now >= close_by_) {
      ::kill(starter_, SIGKILL);
      close_by_ = now + kStarterEndLimit;
    }
    return;
  }
  if (state_ == State::kWaiting) return;
  if (!broken_.empty()) {
    const bool all_said = starter_ == 0 && !words_from_.valid();
    if (all_said || now >= close_by_) Lose(broken_);
    return;
  }
  if (state_ == State::kCalling && now >= answer_by_) {
    return Lose(Format("no answer within {:.0f} s", Seconds(kAnswerLimit)));
  }
  if (state_ != State::kCalling && now - heard_at_ >= kSilenceLimit) {
    return Lose(Format("nothing was heard of it for {:.1f} s", Seconds(kSilenceLimit)));
  }
  if (const int error = outlet_->error(); error != 0) {
    StreamBroke(Format("the connection to it broke: {}", ErrnoText(error)));
  }
}

void AgentLink::StreamBroke(const std::string& how) {
  if (!broken_.empty()) return;
  broken_ = how;
  close_by_ = SteadyClock().Now() + kLastWordsLimit;
  if (from_agent_.valid()) poller_->Forget(from_agent_.get());
  from_agent_.Reset();
  if (starter_name_.empty()) Lose(broken_);
}

void AgentLink::Lose(std::string trouble) {
  ReadWords();
  trouble_ = std::move(trouble) + StarterWords();
  state_ = State::kLost;
  if (starter_ != 0) ::kill(starter_, SIGKILL);
  CloseStream();
  for (Rank& rank : ranks_) {
    if (std::exchange(rank.ended, true)) continue;
    for (const bool is_stderr : {false, true}) listener_->StreamEnded(rank.number, is_stderr);
    RankExit exit;
    exit.rank = rank.number;
    exit.pid = rank.pid;
    exit.status.lost = true;
    exit.lost_because = trouble_;
    listener_->RankEnded(exit);
  }
}

std::string AgentLink::StarterWords() const {
  std::string text;
  if (starter_end_ && !starter_end_->ok()) {
    text = Format("; {} ended with {}", starter_name_, Describe(*starter_end_));
  }
  std::deque<std::string> lines;
  for (std::size_t at = 0; at < words_.size();) {
    const std::size_t end = std::min(words_.find('\n', at), words_.size());
    std::string line = words_.substr(at, end - at);
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    if (lines.size() > kMaxWordLines) lines.pop_front();
    at = end + 1;
  }
  for (std::size_t i = 0; i < lines.size(); ++i)
    text += Format("{}{}", i == 0 ? ": " : " | ", lines[i]);
  return text;
}

void AgentLink::CloseStream() {
  close_by_ = SteadyClock().Now() + kStarterEndLimit;
  if (from_agent_.valid()) poller_->Forget(from_agent_.get());
  from_agent_.Reset();
  if (outlet_ && outlet_watched_) poller_->Forget(outlet_->fd());
  outlet_watched_ = false;
  outlet_.reset();
}

void AgentLink::WatchOutlet() {
  if (!outlet_) return;
  const bool wanted = outlet_->backlog_bytes() > 0;
  if (wanted == outlet_watched_) return;
  if (wanted) {
    outlet_watched_ = poller_->WatchWritable(outlet_->fd(), {Token::Kind::kAgentOut, index_});
  } else {
    poller_->Forget(outlet_->fd());
    outlet_watched_ = false;
  }
}

}  // namespace hvl::launcher
