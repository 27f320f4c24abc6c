#include "launcher/runner.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/log.h"
#include "csrc/base/str.h"
#include "csrc/net/secret.h"
#include "launcher/agent.h"
#include "launcher/errors.h"
#include "launcher/rank_report.h"

namespace hvl::launcher {
namespace {

constexpr std::size_t kJobIdLength = 12;

/// Refuses what cannot fit, because thousands of ranks that have been started take minutes to end.
Status CheckOpenFiles(int rank_count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return Status::Ok();
  }
  const rlim_t needed = kFilesPerRank * static_cast<rlim_t>(rank_count);
  if (needed <= limit.rlim_cur) return Status::Ok();
  return {StatusCode::kResourceExhausted,
          Format("{} ranks need {} open files, and {} are allowed here; see ulimit -n", rank_count,
                 needed, limit.rlim_cur)};
}

Timing TimingOf(const Options& options, Duration elapsed) {
  Timing timing;
  timing.failure_grace = options.failure_grace;
  timing.signal_grace = options.signal_grace;
  if (options.timeout) timing.timeout = std::max(Duration::zero(), *options.timeout - elapsed);
  return timing;
}

/// Each attempt has its own folder, so that the first failure, which explains most, is kept.
std::string LogDirOf(const Options& options, int restarts) {
  if (options.log_dir.empty() || options.max_restarts == 0) return options.log_dir;
  return Format("{}/attempt.{}", options.log_dir, restarts);
}

OutputOptions OutputOptionsOf(const Job& job, int restarts) {
  const bool dumb = job.inherited.Get("TERM").value_or("dumb") == "dumb";
  const bool no_color = !job.inherited.Get("NO_COLOR").value_or("").empty();
  return {.rank_count = job.options.num_proc,
          .tag_lines = job.options.tag_lines,
          .timestamps = job.options.timestamps,
          .allow_colors = !dumb && !no_color,
          .fold = job.options.fold,
          .log_dir = LogDirOf(job.options, restarts),
          .log_option = job.options.log_option,
          .shown = job.options.shown,
          .prompt_rank = job.options.stdin_rank};
}

}  // namespace

Runner::Runner(const Job& job, int restarts, const ProcessDefaults& defaults, net::UniqueFd front)
    : job_(job), front_(std::move(front)), defaults_(defaults) {
  facts_.restarts = restarts;
  facts_.max_restarts = job.options.max_restarts;
}

Runner::~Runner() = default;

int Runner::Run() {
  if (const Status status = SetUp(); !status.ok()) {
    // The screen may be what failed, so this goes out directly.
    const std::string text = Format("hvlrun: {}\n", status.message());
    [[maybe_unused]] const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    return kExitLauncherError;
  }
  if (facts_.restarts == 0) Introduce();
  const TimePoint now = SteadyClock().Now();
  supervision_ = std::make_unique<Supervision>(job_.options.num_proc,
                                               TimingOf(job_.options, now - job_.start), now);
  const Refusal refusal = StartRanks();
  started_ = refusal.exit_code == 0;
  Loop();
  Drain();
  if (refusal.exit_code != 0) {
    SayLines(refusal.message);
  } else {
    Report();
  }
  Drain();
  LeaveHosts();
  const int exit_code = refusal.exit_code != 0 ? refusal.exit_code : ExitCode(Summarize());
  return exit_code == 0 && drain_signal_ != 0 ? 128 + drain_signal_ : exit_code;
}

bool Runner::may_restart() const {
  const bool all_gone = static_cast<int>(exits_.size()) == job_.options.num_proc;
  return started_ && all_gone && !told_to_stop_ && front_.valid() &&
         supervision_->cause() == EndCause::kFailure;
}

void Runner::SayOnScreen(const std::string& text) {
  output_->Say(text);
  Drain();
}

void Runner::SayLines(std::string_view text) {
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    output_->Say(text.substr(at, end - at));
    at = end + 1;
  }
}

void Runner::Introduce() {
  for (const std::string& warning : job_.warnings) output_->Say(warning);
  if (!job_.options.report_bindings || agents_ != nullptr) return;
  for (const std::string& line : BindingReport(job_.binding, job_.cores, job_.options.num_proc)) {
    output_->Say(line);
  }
}

Status Runner::SetUp() {
  if (job_.hosts.empty()) HVL_RETURN_IF_ERROR(CheckOpenFiles(job_.options.num_proc));
  HVL_ASSIGN_OR_RETURN(Poller poller, Poller::Create());
  poller_ = std::make_unique<Poller>(std::move(poller));
  output_ = std::make_unique<Output>(
      OutputOptionsOf(job_, facts_.restarts), STDOUT_FILENO, STDERR_FILENO, poller_.get(),
      SteadyClock(), [this](bool is_stderr, bool on) { host_->SetReading(is_stderr, on); });
  HVL_RETURN_IF_ERROR(output_->OpenLogs());
  if (!poller_->WatchReadable(front_.get(), {.kind = Token::Kind::kFront})) {
    return {StatusCode::kResourceExhausted,
            Format("cannot watch the front process: {}", ErrnoText(errno))};
  }
  facts_.job_id = net::RandomName().substr(0, kJobIdLength);
  secret_ =
      job_.shared_secret ? JobSecret(*job_.shared_secret, facts_.job_id) : net::Secret::Random();
  if (const std::optional<ScreenSize> size = output_->screen_size(); size) {
    facts_.columns = Format("{}", size->columns);
    facts_.lines = Format("{}", size->lines);
  }
  return job_.hosts.empty() ? OpenHere() : OpenAgents();
}

Status Runner::OpenHere() {
  auto ranks = std::make_unique<LocalRanks>(poller_.get(), this, defaults_);
  here_ = ranks.get();
  host_ = std::move(ranks);
  HVL_RETURN_IF_ERROR(here_->Open());
  here_->OpenGroup(facts_.job_id, front_.get());
  HVL_ASSIGN_OR_RETURN(secret_fd_, secret_.ToSealedFd());
  facts_.secret_fd = Format("{}", secret_fd_.get());
  HVL_ASSIGN_OR_RETURN(store_, net::StoreServer::Start(secret_, facts_.job_id, StoreLogger()));
  facts_.store_address = store_->address();
  master_port_ = ReservePort(PortScope::kLoopback);
  facts_.master_address = "127.0.0.1";
  facts_.master_port = Format("{}", master_port_.port);
  facts_.threads_per_rank = job_.binding.threads_per_rank;
  facts_.bound_processors = BoundProcessors(job_);
  return Status::Ok();
}

Logger Runner::StoreLogger() const {
  const LogLevel level = job_.options.verbose ? LogLevel::kInfo : LogLevel::kWarning;
  return {StderrSink(), level, "hvlrun", false};
}

Refusal Runner::StartRanks() { return agents_ != nullptr ? StartOnHosts() : StartHere(); }

Refusal Runner::StartHere() {
  const RankCommand command{.program = job_.program, .arguments = job_.options.command};
  for (int rank = 0; rank < job_.options.num_proc; ++rank) {
    Refusal refusal = here_->Start(command, OrderOf(rank));
    if (refusal.exit_code == 0) continue;
    Apply(supervision_->LaunchFailed(SteadyClock().Now()));
    here_->Abandon();
    return refusal;
  }
  if (job_.options.verbose) {
    output_->Say(Format("job {}: started {} ranks of {}, supervised by process {}", facts_.job_id,
                        job_.options.num_proc, job_.program, ::getpid()));
    if (!here_->no_group().empty()) {
      output_->Say(Format("the job has no control group: {}", here_->no_group()));
    }
  }
  return {};
}

RankOrder Runner::OrderOf(int rank) const {
  return {.rank = rank,
          .env = EnvironmentOf(job_, rank, facts_),
          .processors = ProcessorsOf(job_, rank),
          .shown = job_.options.shown.Contains(rank),
          .stdin_fd = job_.options.stdin_rank == rank ? STDIN_FILENO : -1};
}

void Runner::Loop() {
  while (supervision_->phase() != Supervision::Phase::kDone) {
    if (host_->nobody_left()) return supervision_->NobodyLeft();
    Step();
  }
}

void Runner::Step() {
  std::optional<TimePoint> deadline;
  const std::optional<TimePoint> door = door_ ? door_->deadline() : std::nullopt;
  for (const std::optional<TimePoint>& other :
       {supervision_->deadline(), output_->deadline(), host_->deadline(), door}) {
    if (other && (!deadline || *other < *deadline)) deadline = other;
  }
  Dispatch(poller_->Wait(deadline));
  const TimePoint now = SteadyClock().Now();
  host_->OnTime(now);
  if (door_) door_->OnTime(now);
  output_->OnTime(now);
  Apply(supervision_->TimePassed(now));
  host_->FinishRound();
}

void Runner::Dispatch(const std::vector<Token>& tokens) {
  for (const Token& token : tokens) {
    switch (token.kind) {
      case Token::Kind::kFront:
        ReadFront();
        break;
      case Token::Kind::kSink:
        output_->OnWritable(token.index);
        break;
      case Token::Kind::kDoor:
      case Token::Kind::kGuest:
        if (door_) door_->OnReady(token);
        break;
      default:
        host_->OnReady(token);
        break;
    }
  }
  host_->FinishReady();
}

void Runner::ReadFront() {
  std::array<unsigned char, 64> signals{};
  const ssize_t count = ::read(front_.get(), signals.data(), signals.size());
  if (count < 0) return;
  if (count == 0) {
    poller_->Forget(front_.get());
    front_.Reset();
    return Apply(supervision_->FrontGone(SteadyClock().Now()));
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) HearSignal(signals.at(i));
}

void Runner::HearSignal(int signo) {
  if (AsksToStop(signo)) told_to_stop_ = true;
  Apply(supervision_->SignalReceived(signo, SteadyClock().Now()));
  if (!draining_ || !AsksToStop(signo)) return;
  drain_signal_ = signo;
  output_->AbandonScreen();
}

void Runner::RankWrote(int rank, bool is_stderr, std::string_view bytes) {
  output_->Feed(rank, is_stderr, bytes);
}

void Runner::StreamEnded(int rank, bool is_stderr) { output_->EndStream(rank, is_stderr); }

void Runner::RankEnded(const RankExit& exit) {
  exits_[exit.rank] = exit;
  if (job_.options.verbose) {
    output_->Say(Format("rank {} (pid {}) ended: {}", exit.rank, exit.pid, Describe(exit.status)));
  }
  Apply(supervision_->RankEnded(exit.rank, exit.status, SteadyClock().Now()));
}

void Runner::LeftoverEnded() { Apply(supervision_->LeftoverEnded()); }

void Runner::LeftoverSignalled(const OtherProcess& process) {
  if (supervision_->cause() != EndCause::kNone) return;
  leftover_names_ +=
      Format("{}{} (pid {})", leftover_names_.empty() ? "" : ", ", process.name, process.pid);
}

void Runner::Drain() {
  draining_ = true;
  for (;;) {
    if (host_->ReadRest()) continue;
    output_->ShowHeld();
    if (output_->all_written() && host_->drained()) break;
    if (!front_.valid() && !output_->all_written()) {
      output_->AbandonScreen();  // nobody is there to end a wait for the screen
      continue;
    }
    Dispatch(poller_->Wait(host_->deadline()));
    host_->OnTime(SteadyClock().Now());
    host_->FinishRound();
  }
  draining_ = false;
}

JobEnd Runner::Summarize() const {
  JobEnd end;
  end.job_id = facts_.job_id;
  end.rank_count = job_.options.num_proc;
  end.start = supervision_->start();
  end.end = SteadyClock().Now();
  end.cause = supervision_->cause();
  end.stop_signal = supervision_->stop_signal();
  end.ends = supervision_->ends();
  for (const RankEnd& rank : end.ends) {
    if (rank.status.ok()) continue;
    const std::optional<int> blamed = BlamedBy(
        exits_.at(rank.rank).report, output_->LastErrorLines(rank.rank), rank.rank, end.rank_count);
    if (blamed) end.blames.emplace(rank.rank, *blamed);
  }
  return end;
}

std::map<int, StatusReport> Runner::Reports() const {
  std::map<int, StatusReport> reports;
  for (const auto& [rank, exit] : exits_) {
    if (!exit.status.lost) reports.emplace(rank, exit.report);
  }
  return reports;
}

void Runner::Report() {
  const JobEnd end = Summarize();
  std::vector<std::string> lines;
  std::string told;  // about a host that was lost
  if (end.cause == EndCause::kFailure) {
    const int rank = RootCause(end).rank;
    const RankExit& culprit = exits_.at(rank);
    told = culprit.lost_because;
    lines = FailureSummary(end, {.pid = culprit.pid,
                                 .host = job_.places[static_cast<std::size_t>(rank)].host,
                                 .peak_memory_kib = culprit.peak_memory_kib,
                                 .memory_hint = culprit.memory_hint,
                                 .lost_because = culprit.lost_because,
                                 .report = culprit.report,
                                 .last_lines = output_->LastErrorLines(rank),
                                 .log_folder = output_->LogFolder(rank)});
  } else if (end.cause == EndCause::kSignal || end.cause == EndCause::kTimeout) {
    lines = StopSummary(end, Reports());
  }
  for (const std::string& line : lines) output_->Say(line);
  ReportHosts(told);
  if (!leftover_names_.empty()) {
    output_->Say(Format("stopped what the ranks had left running: {}", leftover_names_));
  }
  ReportUnkillable();
}

}  // namespace hvl::launcher
