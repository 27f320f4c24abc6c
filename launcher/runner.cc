#include "launcher/runner.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
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
#include "launcher/errors.h"

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
          .shown = job.options.shown,
          .prompt_rank = job.options.stdin_rank};
}

}  // namespace

Runner::Runner(const Job& job, int restarts, const ProcessDefaults& defaults, net::UniqueFd front)
    : job_(job),
      front_(std::move(front)),
      defaults_(defaults),
      ranks_(static_cast<std::size_t>(job.options.num_proc)) {
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
    output_->Say(refusal.message);
  } else {
    Report();
  }
  Drain();
  const int exit_code = refusal.exit_code != 0 ? refusal.exit_code : ExitCode(Summarize());
  return exit_code == 0 && drain_signal_ != 0 ? 128 + drain_signal_ : exit_code;
}

bool Runner::may_restart() const {
  const bool all_gone =
      std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.alive; });
  return started_ && all_gone && !told_to_stop_ && front_.valid() &&
         supervision_->cause() == EndCause::kFailure;
}

void Runner::SayOnScreen(const std::string& text) {
  output_->Say(text);
  Drain();
}

void Runner::Introduce() {
  for (const std::string& warning : job_.warnings) output_->Say(warning);
  if (!job_.options.report_bindings) return;
  for (const std::string& line : BindingReport(job_.binding, job_.cores, job_.options.num_proc)) {
    output_->Say(line);
  }
}

Status Runner::SetUp() {
  HVL_RETURN_IF_ERROR(CheckOpenFiles(job_.options.num_proc));
  HVL_ASSIGN_OR_RETURN(Poller poller, Poller::Create());
  poller_ = std::make_unique<Poller>(std::move(poller));
  output_ = std::make_unique<Output>(OutputOptionsOf(job_, facts_.restarts), STDOUT_FILENO,
                                     STDERR_FILENO, poller_.get(), SteadyClock());
  HVL_RETURN_IF_ERROR(output_->OpenLogs());
  HVL_RETURN_IF_ERROR(OpenStore());
  no_input_ = net::UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  child_signals_ = net::UniqueFd(::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!no_input_.valid() || !child_signals_.valid() ||
      !poller_->WatchReadable(child_signals_.get(), {.kind = Token::Kind::kChildren}) ||
      !poller_->WatchReadable(front_.get(), {.kind = Token::Kind::kFront})) {
    return {StatusCode::kResourceExhausted,
            Format("cannot open what is needed: {}", ErrnoText(errno))};
  }
  master_port_ = ReservePort();
  facts_.master_address = "127.0.0.1";
  facts_.master_port = Format("{}", master_port_.port);
  facts_.threads_per_rank = job_.binding.threads_per_rank;
  facts_.bound_processors = BoundProcessors(job_);
  if (const std::optional<ScreenSize> size = output_->screen_size(); size) {
    facts_.columns = Format("{}", size->columns);
    facts_.lines = Format("{}", size->lines);
  }
  return Status::Ok();
}

Status Runner::OpenStore() {
  const net::Secret secret = net::Secret::Random();
  HVL_ASSIGN_OR_RETURN(secret_, secret.ToSealedFd());
  facts_.job_id = net::RandomName().substr(0, kJobIdLength);
  facts_.secret_fd = Format("{}", secret_.get());
  const LogLevel level = job_.options.verbose ? LogLevel::kInfo : LogLevel::kWarning;
  HVL_ASSIGN_OR_RETURN(
      store_,
      net::StoreServer::Start(secret, facts_.job_id, Logger(StderrSink(), level, "hvlrun", false)));
  facts_.store_address = store_->address();
  return Status::Ok();
}

Refusal Runner::StartRanks() {
  for (int rank = 0; rank < job_.options.num_proc; ++rank) {
    Refusal refusal = StartRank(rank);
    if (refusal.exit_code == 0) continue;
    Apply(supervision_->LaunchFailed(SteadyClock().Now()));
    ReapChildren();
    return refusal;
  }
  if (job_.options.verbose) {
    output_->Say(Format("job {}: started {} ranks of {}, supervised by process {}", facts_.job_id,
                        job_.options.num_proc, job_.program, ::getpid()));
  }
  return {};
}

Refusal Runner::StartRank(int rank) {
  Result<Output::RankEnds> ends = output_->AddRank(rank);
  if (!ends.ok()) return {kExitLauncherError, ends.status().message()};
  EnvBlock env = EnvironmentOf(job_, rank, facts_);
  const bool reads = job_.options.stdin_rank == rank;
  const SpawnRequest request{.path = job_.program,
                             .arguments = job_.options.command,
                             .env = &env,
                             .stdin_fd = reads ? STDIN_FILENO : no_input_.get(),
                             .stdout_fd = ends->out.get(),
                             .stderr_fd = ends->err.get(),
                             .processors = ProcessorsOf(job_, rank)};
  Rank& started = ranks_[static_cast<std::size_t>(rank)];
  Refusal refusal = Spawn(request, defaults_, &started.child);
  if (refusal.exit_code != 0) return refusal;
  started.alive = true;
  rank_by_pid_[started.child.pid] = static_cast<std::size_t>(rank);
  if (started.child.pidfd.valid() &&
      !poller_->WatchReadable(
          started.child.pidfd.get(),
          {.kind = Token::Kind::kRank, .index = static_cast<std::uint32_t>(rank)})) {
    started.child.pidfd.Reset();  // SIGCHLD tells as well, only not in which order they ended
  }
  return {};
}

void Runner::Loop() {
  while (supervision_->phase() != Supervision::Phase::kDone) {
    std::optional<TimePoint> deadline = supervision_->deadline();
    const std::optional<TimePoint> output = output_->deadline();
    if (output && (!deadline || *output < *deadline)) deadline = output;
    Dispatch(poller_->Wait(deadline));
    const TimePoint now = SteadyClock().Now();
    output_->OnTime(now);
    Apply(supervision_->TimePassed(now));
    if (leftover_signal_due_ != 0) SignalLeftovers();
  }
}

void Runner::Dispatch(const std::vector<Token>& tokens) {
  bool children = false;
  for (const Token& token : tokens) {
    switch (token.kind) {
      case Token::Kind::kRank:
        ReapRank(token.index);
        children = true;
        break;
      case Token::Kind::kChildren:
        children = true;
        break;
      case Token::Kind::kFront:
        ReadFront();
        break;
      case Token::Kind::kStream:
        output_->OnReadable(token.index);
        break;
      case Token::Kind::kSink:
        output_->OnWritable(token.index);
        break;
    }
  }
  // Last, because the ranks' own descriptors tell in which order they ended.
  if (children) ReapChildren();
}

void Runner::ReadFront() {
  std::array<unsigned char, 64> signals{};
  const ssize_t count = ::read(front_.get(), signals.data(), signals.size());
  if (count < 0) return;
  const TimePoint now = SteadyClock().Now();
  if (count == 0) {
    poller_->Forget(front_.get());
    front_.Reset();
    return Apply(supervision_->FrontGone(now));
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const int signo = signals.at(i);
    if (AsksToStop(signo)) told_to_stop_ = true;
    Apply(supervision_->SignalReceived(signo, now));
    if (!draining_ || !AsksToStop(signo)) continue;
    drain_signal_ = signo;
    output_->AbandonScreen();
  }
}

void Runner::ReapRank(std::uint32_t index) {
  const Rank& rank = ranks_[index];
  if (!rank.alive) return;
  int status = 0;
  rusage usage{};
  if (::wait4(rank.child.pid, &status, WNOHANG, &usage) != rank.child.pid) return;
  ChildEnded(rank.child.pid, status, usage.ru_maxrss);
}

void Runner::ReapChildren() {
  signalfd_siginfo info{};
  while (::read(child_signals_.get(), &info, sizeof info) > 0) {
  }
  for (;;) {
    int status = 0;
    rusage usage{};
    const pid_t pid = ::wait4(-1, &status, WNOHANG, &usage);
    if (pid == 0) return;
    if (pid > 0) {
      ChildEnded(pid, status, usage.ru_maxrss);
    } else if (errno != EINTR) {
      return supervision_->NobodyLeft();  // ECHILD
    }
  }
}

void Runner::ChildEnded(pid_t pid, int wait_status, long peak_memory_kib) {
  Rank* rank = RunningRank(pid);
  if (rank == nullptr) {
    signalled_leftovers_.erase(pid);
    return Apply(supervision_->LeftoverEnded());
  }
  const ExitStatus status = ExitStatus::FromWait(wait_status);
  rank->alive = false;
  rank->peak_memory_kib = peak_memory_kib;
  if (rank->child.pidfd.valid()) poller_->Forget(rank->child.pidfd.get());
  rank->child.pidfd.Reset();
  if (status.signal == SIGKILL && memory_hint_.empty()) memory_hint_ = oom_.Hint();
  const int number = static_cast<int>(rank - ranks_.data());
  if (job_.options.verbose) {
    output_->Say(Format("rank {} (pid {}) ended: {}", number, pid, Describe(status)));
  }
  Apply(supervision_->RankEnded(number, status, SteadyClock().Now()));
}

/// The rank whose process this is; null when there is none, or it has ended and been reaped.
Runner::Rank* Runner::RunningRank(pid_t pid) {
  const auto known = rank_by_pid_.find(pid);
  if (known == rank_by_pid_.end()) return nullptr;
  Rank* rank = &ranks_[known->second];
  return rank->alive ? rank : nullptr;
}

void Runner::Drain() {
  draining_ = true;
  for (;;) {
    if (output_->ReadRest()) continue;
    output_->ShowHeld();
    if (output_->all_written()) break;
    if (!front_.valid()) {
      output_->AbandonScreen();  // nobody is there to end a wait for the screen
      continue;
    }
    Dispatch(poller_->Wait(std::nullopt));
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
    const std::optional<int> blamed =
        BlamedRank(output_->LastErrorLines(rank.rank), rank.rank, end.rank_count);
    if (blamed) end.blames.emplace(rank.rank, *blamed);
  }
  return end;
}

void Runner::Report() {
  const JobEnd end = Summarize();
  std::vector<std::string> lines;
  if (end.cause == EndCause::kFailure) {
    const int rank = RootCause(end).rank;
    const Rank& culprit = ranks_[static_cast<std::size_t>(rank)];
    lines = FailureSummary(end, {.pid = culprit.child.pid,
                                 .host = job_.places[static_cast<std::size_t>(rank)].host,
                                 .peak_memory_kib = culprit.peak_memory_kib,
                                 .memory_hint = memory_hint_,
                                 .last_lines = output_->LastErrorLines(rank),
                                 .log_folder = output_->LogFolder(rank)});
  } else if (end.cause == EndCause::kSignal || end.cause == EndCause::kTimeout) {
    lines = StopSummary(end);
  }
  for (const std::string& line : lines) output_->Say(line);
  if (!leftover_names_.empty()) {
    output_->Say(Format("stopped what the ranks had left running: {}", leftover_names_));
  }
  ReportUnkillable();
}

}  // namespace hvl::launcher
