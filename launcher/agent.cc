#include "launcher/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/hmac.h"
#include "launcher/agent_frames.h"
#include "launcher/command.h"
#include "launcher/control_group.h"
#include "launcher/doctor.h"
#include "launcher/errors.h"
#include "launcher/frame_outlet.h"
#include "launcher/host_env.h"
#include "launcher/local_ranks.h"
#include "launcher/network.h"
#include "launcher/poller.h"
#include "launcher/process_tree.h"
#include "launcher/seconds.h"
#include "launcher/spawn.h"
#include "launcher/supervision.h"

namespace hvl::launcher {
namespace {

constexpr std::size_t kReadBytes = 65536;
// What the way to the head may be behind before the ranks wait, and when they go on.
constexpr std::size_t kMaxUnsentBytes = 1 << 20;
constexpr std::size_t kLowUnsentBytes = 1 << 18;
constexpr Duration kKillInterval = std::chrono::milliseconds(50);
constexpr Duration kKillLimit = std::chrono::seconds(5);

class Agent final : public RankListener {
 public:
  explicit Agent(AgentSetup setup);

  int Run();

  // RankListener
  void RankWrote(int rank, bool is_stderr, std::string_view bytes) override;
  void StreamEnded(int rank, bool is_stderr) override;
  void RankEnded(const RankExit& exit) override;
  void LeftoverEnded() override { Send(LeftoverGone()); }
  void LeftoverSignalled(const OtherProcess& process) override { Send(LeftoverFound{process}); }

 private:
  Status SetUp();
  void Send(const AgentFrame& frame);
  Hello MakeHello();
  void Dispatch(const std::vector<Token>& tokens);
  void ReadHead();
  Status HandleFrames();
  void Handle(const HeadFrame& frame);
  void Start(const StartOrder& order);
  Refusal StartRanks(const StartOrder& order);
  void Examine(const ExamineOrder& order);
  void ReadFront();
  void Desert(const std::string& why);
  void OnTime(TimePoint now);
  void FollowEnd();
  void WatchOutlet();
  TimePoint Deadline() const;

  net::UniqueFd from_head_;
  std::shared_ptr<FrameOutlet> outlet_;
  net::UniqueFd front_;
  const EnvBlock own_;
  const std::optional<net::Secret> shared_secret_;
  ProcessDefaults defaults_;
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<LocalRanks> ranks_;
  std::unique_ptr<Pulse> pulse_;
  FrameInlet inlet_;
  FrameReader reader_;
  ReservedPort free_port_;
  net::UniqueFd secret_;
  TimePoint heard_at_{};  // from the head
  bool ordered_ = false;
  bool nobody_told_ = false;
  bool finished_ = false;
  bool outlet_watched_ = false;
  bool held_ = false;
  std::optional<TimePoint> kill_again_at_;  // deserted: the job is being killed
  TimePoint give_up_at_{};
};

Agent::Agent(AgentSetup setup)
    : from_head_(std::move(setup.from_head)),
      front_(std::move(setup.front)),
      own_(std::move(setup.own)),
      shared_secret_(setup.shared_secret),
      inlet_(ReceivingKey(setup.keys)) {
  std::string beat;
  Encode(AgentFrame(Beat()), &beat);
  outlet_ = std::make_shared<FrameOutlet>(std::move(setup.to_head), std::move(beat),
                                          SendingKey(setup.keys));
}

Status Agent::SetUp() {
  BecomeReaper();
  defaults_ = {.max_open_files = RaiseOpenFiles()};
  HVL_ASSIGN_OR_RETURN(Poller poller, Poller::Create());
  poller_ = std::make_unique<Poller>(std::move(poller));
  ranks_ = std::make_unique<LocalRanks>(poller_.get(), this, defaults_);
  HVL_RETURN_IF_ERROR(ranks_->Open());
  for (const int fd : {from_head_.get(), outlet_->fd()}) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
      return Invalid(Format("no stream to the head of the job: {}", ErrnoText(errno)));
    }
  }
  if (!poller_->WatchReadable(from_head_.get(), {.kind = Token::Kind::kAgentIn}) ||
      !poller_->WatchReadable(front_.get(), {.kind = Token::Kind::kFront})) {
    return Invalid(
        "--agent: standard input and output must be pipes or sockets; hvlrun starts "
        "agents itself, on the hosts of a job");
  }
  free_port_ = ReservePort(PortScope::kAllAddresses);
  heard_at_ = SteadyClock().Now();
  return Status::Ok();
}

Hello Agent::MakeHello() {
  Hello hello;
  hello.version = HVL_VERSION;
  hello.host_name = HostName();
  hello.pid = ::getpid();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  hello.nanoseconds_since_1970 = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  hello.addresses = OutsideAddresses();
  hello.ssh_connection = own_.Get("SSH_CONNECTION").value_or("");
  hello.free_port = free_port_.port;
  hello.cores = ReadTopology("/sys/devices/system", AllowedProcessors());
  if (const std::optional<double> quota = ProcessorQuota(); quota) {
    hello.quota_thousandths = static_cast<std::int64_t>(*quota * 1000);
  }
  return hello;
}

int Agent::Run() {
  if (const Status status = SetUp(); !status.ok()) {
    const std::string text = Format("hvlrun: {}\n", status.message());
    [[maybe_unused]] const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    return kExitLauncherError;
  }
  outlet_->Send(Greeting());
  Send(MakeHello());
  pulse_ = std::make_unique<Pulse>();
  pulse_->Add(outlet_);
  while (!(finished_ && outlet_->backlog_bytes() == 0)) {
    Dispatch(poller_->Wait(Deadline()));
    OnTime(SteadyClock().Now());
    if (kill_again_at_ && (!ordered_ || ranks_->nobody_left())) return kExitLauncherError;
    if (SteadyClock().Now() > give_up_at_ && kill_again_at_) return kExitLauncherError;
    ranks_->FinishRound();
    FollowEnd();
    WatchOutlet();
  }
  return 0;
}

TimePoint Agent::Deadline() const {
  if (kill_again_at_) return *kill_again_at_;
  return heard_at_ + kSilenceLimit;
}

void Agent::OnTime(TimePoint now) {
  if (kill_again_at_ && now >= *kill_again_at_) {
    ranks_->KillAll();
    kill_again_at_ = now + kKillInterval;
  }
  if (!kill_again_at_ && now - heard_at_ >= kSilenceLimit) {
    Desert(Format("nothing was heard of the head of the job for {:.1f} s", Seconds(kSilenceLimit)));
  }
  if (!kill_again_at_ && outlet_->error() != 0) {
    Desert(Format("cannot write to the head of the job: {}", ErrnoText(outlet_->error())));
  }
}

void Agent::Dispatch(const std::vector<Token>& tokens) {
  for (const Token& token : tokens) {
    switch (token.kind) {
      case Token::Kind::kAgentIn:
        ReadHead();
        break;
      case Token::Kind::kAgentOut:
        outlet_->Flush();
        break;
      case Token::Kind::kFront:
        ReadFront();
        break;
      default:
        ranks_->OnReady(token);
        break;
    }
  }
  ranks_->FinishReady();
}

void Agent::ReadHead() {
  std::array<char, kReadBytes> bytes{};
  const ssize_t count = ::read(from_head_.get(), bytes.data(), bytes.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) {
    poller_->Forget(from_head_.get());
    return Desert("the connection to the head of the job was closed");
  }
  heard_at_ = SteadyClock().Now();
  Status status = inlet_.Feed({bytes.data(), static_cast<std::size_t>(count)}, &reader_);
  if (status.ok()) status = HandleFrames();
  if (!status.ok()) {
    poller_->Forget(from_head_.get());
    Desert(status.message());
  }
}

Status Agent::HandleFrames() {
  HVL_ASSIGN_OR_RETURN(const bool greeted, reader_.Greeted());
  if (!greeted) return Status::Ok();
  for (;;) {
    HVL_ASSIGN_OR_RETURN(const std::optional<HeadFrame> frame, reader_.NextOfHead());
    if (!frame) return Status::Ok();
    if (!kill_again_at_ && !finished_) Handle(*frame);
  }
}

void Agent::Handle(const HeadFrame& frame) {
  if (const auto* start = std::get_if<StartOrder>(&frame)) return Start(*start);
  if (const auto* examine = std::get_if<ExamineOrder>(&frame)) return Examine(*examine);
  if (const auto* signal = std::get_if<SignalOrder>(&frame)) {
    if (!signal->leftovers) return ranks_->SignalRanks(signal->signo);
    return ranks_->SignalLeftovers(signal->signo);
  }
  if (std::holds_alternative<KillOrder>(frame)) {
    if (!ordered_) return Desert("the job does not start");
    return ranks_->KillAll();
  }
  if (const auto* reading = std::get_if<ReadingOrder>(&frame)) {
    ranks_->SetReading(reading->is_stderr, reading->on);
  }
}

void Agent::Start(const StartOrder& order) {
  if (ordered_) return Desert("the head of the job ordered twice");
  ordered_ = true;
  const Refusal refusal = StartRanks(order);
  Started started;
  started.exit_code = refusal.exit_code;
  started.message = refusal.message;
  if (refusal.exit_code == 0) {
    started.pids = ranks_->Pids();
    started.message = ranks_->no_group();
  } else {
    ranks_->KillAll();
    ranks_->Abandon();
  }
  Send(started);
}

Refusal Agent::StartRanks(const StartOrder& order) {
  if (order.command.empty()) return {kExitLauncherError, "the head of the job names no command"};
  if (::chdir(order.folder.c_str()) != 0) {
    return {kExitCannotExec,
            Format("cannot change to the working directory '{}': {}; it has to exist on every host",
                   order.folder, ErrnoText(errno))};
  }
  net::Secret secret;
  std::ranges::copy(std::as_bytes(std::span(order.secret)), secret.key.begin());
  if (!order.has_secret) {
    if (!shared_secret_) return {kExitLauncherError, "there is no secret: set HVL_SECRET_FILE"};
    secret = JobSecret(*shared_secret_, order.job_id);
  }
  Result<net::UniqueFd> sealed = secret.ToSealedFd();
  if (!sealed.ok()) return {kExitLauncherError, sealed.status().message()};
  secret_ = std::move(*sealed);

  EnvBlock shared(order.environment);
  AddHostVariables(own_, &shared);
  shared.Set("HVL_SECRET_FD", Format("{}", secret_.get()));
  ranks_->OpenGroup(order.job_id, front_.get());
  RankCommand command{.program = "", .arguments = order.command};
  Refusal refusal =
      FindProgram(order.command.front(), shared.Get("PATH").value_or(""), &command.program);
  if (refusal.exit_code != 0) return refusal;
  for (const StartOrder::Rank& rank : order.ranks) {
    RankOrder one{.rank = rank.rank,
                  .env = shared,
                  .processors = rank.processors,
                  .shown = rank.shown,
                  .stdin_fd = -1};
    for (const std::string& setting : rank.settings) {
      const std::size_t equals = std::min(setting.find('='), setting.size() - 1);
      one.env.Set(setting.substr(0, equals), std::string_view(setting).substr(equals + 1));
    }
    refusal = ranks_->Start(command, std::move(one));
    if (refusal.exit_code != 0) return refusal;
  }
  return {};
}

void Agent::Examine(const ExamineOrder& order) {
  Examined answer;
  Options options;
  options.command = order.command;
  if (!order.folder.empty() && ::chdir(order.folder.c_str()) != 0) {
    answer.findings.push_back({Finding::Level::kFail, "folder",
                               Format("no '{}': {}", order.folder, ErrnoText(errno)),
                               "the working directory has to exist on every host"});
  }
  EnvBlock env(order.environment);
  AddHostVariables(own_, &env);
  if (!order.command.empty()) {
    std::string program;
    const Refusal refusal =
        FindProgram(order.command.front(), env.Get("PATH").value_or(""), &program);
    if (refusal.exit_code != 0) {
      answer.findings.push_back({Finding::Level::kFail, "command", refusal.message,
                                 "the program has to exist on every host, at the same path"});
    }
  }
  const HostFacts facts = CollectHostFacts(options, env);
  const int cores = std::max(1, static_cast<int>(facts.cores.size()));
  const int ranks = std::clamp(order.rank_count, 1, 1 << 20);
  for (Finding& finding : launcher::Examine(facts, ranks, std::max(1, cores / ranks))) {
    answer.findings.push_back(std::move(finding));
  }
  Send(std::move(answer));
}

void Agent::ReadFront() {
  std::array<unsigned char, 64> signals{};
  const ssize_t count = ::read(front_.get(), signals.data(), signals.size());
  if (count < 0) return;
  if (count == 0) {
    poller_->Forget(front_.get());
    return Desert("the agent's front process is gone");
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const int signo = signals.at(i);
    if (!ordered_ && AsksToStop(signo)) return Desert(Format("got {}", SignalName(signo)));
    // The job is one: who stops a part of it means all. Stopping for a while is not passed on.
    if (AsksToStop(signo) || signo == SIGUSR1 || signo == SIGUSR2) Send(Signalled{signo});
  }
}

/// Kills all, because nobody is there to order anything else.
void Agent::Desert(const std::string& why) {
  if (kill_again_at_) return;
  const std::string line = Format("hvlrun: agent on {}: {}{}\n", HostName(), why,
                                  ordered_ ? "; its ranks are killed" : "");
  [[maybe_unused]] const ssize_t count = ::write(STDERR_FILENO, line.data(), line.size());
  const TimePoint now = SteadyClock().Now();
  kill_again_at_ = now + kKillInterval;
  give_up_at_ = now + kKillLimit;
  ranks_->HoldOutput(true);
  ranks_->KillAll();
  ranks_->Abandon();
}

void Agent::RankWrote(int rank, bool is_stderr, std::string_view bytes) {
  Send(Wrote{.rank = rank, .is_stderr = is_stderr, .bytes = bytes});
}

void Agent::StreamEnded(int rank, bool is_stderr) {
  Send(Wrote{.rank = rank, .is_stderr = is_stderr, .bytes = {}});
}

void Agent::RankEnded(const RankExit& exit) {
  ranks_->ReadRestOf(exit.rank);  // its last words first: they may tell why
  Send(Ended{exit});
}

/// Ends that this agent brings about itself, deserted, are no news of the ranks.
void Agent::Send(const AgentFrame& frame) {
  if (kill_again_at_) return;
  std::string bytes;
  Encode(frame, &bytes);
  outlet_->Send(bytes);
}

void Agent::FollowEnd() {
  if (!ordered_ || !ranks_->nobody_left() || finished_ || kill_again_at_) return;
  if (!nobody_told_) Send(NobodyLeft());
  nobody_told_ = true;
  while (ranks_->ReadRest()) {
    WatchOutlet();  // may tell to wait
  }
  if (!ranks_->drained()) return;
  Send(Finished{ranks_->Unkillable()});
  finished_ = true;
}

void Agent::WatchOutlet() {
  const std::size_t unsent = outlet_->backlog_bytes();
  if (unsent > kMaxUnsentBytes && !std::exchange(held_, true)) ranks_->HoldOutput(true);
  if (unsent < kLowUnsentBytes && std::exchange(held_, false)) ranks_->HoldOutput(false);
  const bool wanted = unsent > 0;
  if (wanted == outlet_watched_) return;
  if (wanted) {
    outlet_watched_ =
        poller_->WatchWritable(outlet_->fd(), {.kind = Token::Kind::kAgentOut, .index = 0});
  } else {
    poller_->Forget(outlet_->fd());
    outlet_watched_ = false;
  }
}

}  // namespace

int RunAgent(AgentSetup setup) { return Agent(std::move(setup)).Run(); }

net::Secret JobSecret(const net::Secret& shared, const std::string& job_id) {
  net::ByteWriter label;
  label.Text("horovodlite job");
  label.Text(job_id);
  const net::Digest digest = net::HmacSha256(shared, net::AsBytes(label.str()));
  net::Secret secret;
  secret.key = digest;
  return secret;
}

}  // namespace hvl::launcher
