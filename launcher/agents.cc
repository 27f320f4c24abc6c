#include "launcher/agents.h"

#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "csrc/base/str.h"
#include "launcher/errors.h"
#include "launcher/process_tree.h"

namespace hvl::launcher {
namespace {

using State = AgentLink::State;

}  // namespace

Agents::Agents(Poller* poller, RankListener* listener, const ProcessDefaults& defaults,
               std::function<void(int signo)> on_signal)
    : poller_(poller), listener_(listener), defaults_(defaults), on_signal_(std::move(on_signal)) {}

Status Agents::Open() {
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  child_signals_ = net::UniqueFd(::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
  if (child_signals_.valid() &&
      poller_->WatchReadable(child_signals_.get(), {.kind = Token::Kind::kChildren})) {
    return Status::Ok();
  }
  return {StatusCode::kResourceExhausted,
          Format("cannot open what is needed: {}", ErrnoText(errno))};
}

void Agents::Add(const std::string& host, Starter starter) {
  links_.push_back(std::make_unique<AgentLink>(static_cast<std::uint32_t>(links_.size()), host,
                                               poller_, listener_, on_signal_));
  starters_.push_back(std::move(starter));
}

Status Agents::AddGuest(net::UniqueFd connection, const net::LinkKeys& keys) {
  Add("", {});
  HVL_RETURN_IF_ERROR(links_.back()->Take(std::move(connection), keys));
  links_.back()->AddTo(&pulse_);
  called_ = links_.size();
  return Status::Ok();
}

void Agents::CallMore() {
  auto calling = static_cast<std::size_t>(std::count_if(
      links_.begin(), links_.end(),
      [](const std::unique_ptr<AgentLink>& link) { return link->state() == State::kCalling; }));
  while (!stopped_ && calling < kMaxCalling && called_ < links_.size()) {
    AgentLink* link = links_[called_].get();
    const Refusal refusal = link->Call(starters_[called_], starter_env_, defaults_);
    ++called_;
    if (refusal.exit_code != 0) {
      link->Fail(refusal.message);
      continue;
    }
    link->AddTo(&pulse_);
    ++calling;
  }
}

bool Agents::all_answered() const {
  return std::none_of(links_.begin(), links_.end(), [](const std::unique_ptr<AgentLink>& link) {
    return link->state() < State::kReady;
  });
}

bool Agents::all_started() const {
  return std::none_of(links_.begin(), links_.end(), [](const std::unique_ptr<AgentLink>& link) {
    return link->state() <= State::kOrdered;
  });
}

bool Agents::gone() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const std::unique_ptr<AgentLink>& link) { return link->gone(); });
}

void Agents::SignalRanks(int signo) {
  for (const auto& link : links_) link->SignalRanks(signo);
}

void Agents::SignalLeftovers(int signo) {
  for (const auto& link : links_) link->SignalLeftovers(signo);
}

void Agents::KillAll() {
  stopped_ = true;
  for (const auto& link : links_) link->KillAll();
}

void Agents::SetReading(bool is_stderr, bool on) {
  for (const auto& link : links_) link->SetReading(is_stderr, on);
}

void Agents::OnReady(Token token) {
  if (token.kind == Token::Kind::kChildren) {
    children_ready_ = true;
  } else if (token.index < links_.size()) {
    links_[token.index]->OnReady(token);
  }
}

void Agents::FinishReady() {
  if (!std::exchange(children_ready_, false)) return;
  signalfd_siginfo info{};
  while (::read(child_signals_.get(), &info, sizeof info) > 0) {
  }
  for (const auto& link : links_) link->Reap();
}

void Agents::FinishRound() {
  CallMore();
  for (const auto& link : links_) link->FinishRound();
}

std::optional<TimePoint> Agents::deadline() const {
  std::optional<TimePoint> first;
  for (const auto& link : links_) {
    const std::optional<TimePoint> due = link->deadline();
    if (due && (!first || *due < *first)) first = due;
  }
  return first;
}

void Agents::OnTime(TimePoint now) {
  for (const auto& link : links_) link->OnTime(now);
}

bool Agents::nobody_left() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const std::unique_ptr<AgentLink>& link) { return link->nobody_left(); });
}

bool Agents::drained() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const std::unique_ptr<AgentLink>& link) { return link->drained(); });
}

std::vector<OtherProcess> Agents::Unkillable() const {
  std::vector<OtherProcess> all;
  for (const auto& link : links_) {
    for (OtherProcess process : link->Unkillable()) {
      process.name += Format(" on {}", link->host());
      all.push_back(std::move(process));
    }
  }
  return all;
}

void EndDescendants(Duration limit) {
  const TimePoint give_up = SteadyClock().Now() + limit;
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  while (SteadyClock().Now() < give_up) {
    for (const ProcessInfo& process : Descendants(::getpid())) SignalProcess(process, SIGKILL);
    pid_t pid = 0;
    do {
      pid = ::waitpid(-1, nullptr, WNOHANG);
    } while (pid > 0);
    if (pid < 0 && errno == ECHILD) return;
    const timespec pause{.tv_sec = 0, .tv_nsec = 20'000'000};
    ::sigtimedwait(&children, nullptr, &pause);  // the end of a child, which is blocked
  }
}

}  // namespace hvl::launcher
