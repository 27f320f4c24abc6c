#include "launcher/local_ranks.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "csrc/base/str.h"
#include "launcher/errors.h"

namespace hvl::launcher {
namespace {

/// A terminal sends these to the whole group in front, so the ranks' groups get them too. The
/// others reach the rank itself only: SIGTERM, say, would end the workers that feed a rank with
/// data, and with them the checkpoint that the rank is about to write.
bool GoesToGroup(int signo) {
  return signo == SIGINT || signo == SIGQUIT || signo == SIGTSTP || signo == SIGCONT;
}

bool Ends(int signo) {
  return signo != SIGUSR1 && signo != SIGUSR2 && signo != SIGTSTP && signo != SIGCONT;
}

}  // namespace

LocalRanks::LocalRanks(Poller* poller, RankListener* listener, const ProcessDefaults& defaults)
    : poller_(poller),
      listener_(listener),
      defaults_(defaults),
      pipes_(poller, [listener](int rank, bool is_stderr, std::string_view bytes) {
        if (bytes.empty()) return listener->StreamEnded(rank, is_stderr);
        listener->RankWrote(rank, is_stderr, bytes);
      }) {}

Status LocalRanks::Open() {
  no_input_ = net::UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  child_signals_ = net::UniqueFd(::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
  if (no_input_.valid() && child_signals_.valid() &&
      poller_->WatchReadable(child_signals_.get(), {.kind = Token::Kind::kChildren})) {
    return Status::Ok();
  }
  return {StatusCode::kResourceExhausted,
          Format("cannot open what is needed: {}", ErrnoText(errno))};
}

void LocalRanks::OpenGroup(const std::string& job_id, int line) {
  Result<std::unique_ptr<JobGroup>> group = JobGroup::Make(job_id, GroupMark(::getpid(), line));
  no_group_ = group.status().message();
  if (group.ok()) group_ = std::move(*group);
}

Refusal LocalRanks::Start(const RankCommand& command, RankOrder order) {
  Result<RankPipes::RankEnds> ends = pipes_.Add(order.rank, order.shown);
  if (!ends.ok()) return {kExitLauncherError, ends.status().message()};
  Rank rank;
  rank.number = order.rank;
  rank.page = RankPage::Make();
  // Also without a page: a launcher that runs in a rank has inherited that rank's.
  order.env.Set("HVL_STATUS_FD", rank.page ? Format("{}", rank.page->fd()) : "");
  const SpawnRequest request{.path = command.program,
                             .arguments = command.arguments,
                             .env = &order.env,
                             .stdin_fd = order.stdin_fd >= 0 ? order.stdin_fd : no_input_.get(),
                             .stdout_fd = ends->out.get(),
                             .stderr_fd = ends->err.get(),
                             .processors = std::move(order.processors),
                             .group_fd = group_ ? group_->fd() : -1};
  Refusal refusal = Spawn(request, defaults_, &rank.child);
  if (refusal.exit_code != 0) return refusal;
  rank.alive = true;
  if (rank.page) rank.page->Handed();
  if (group_ && !rank.child.in_group && ranks_.empty()) {
    no_group_ = Format("the kernel starts no process in '{}'", group_->folder());
    group_.reset();
  }
  const std::size_t index = ranks_.size();
  rank_by_pid_[rank.child.pid] = index;
  if (rank.child.pidfd.valid() &&
      !poller_->WatchReadable(
          rank.child.pidfd.get(),
          {.kind = Token::Kind::kRank, .index = static_cast<std::uint32_t>(index)})) {
    rank.child.pidfd.Reset();  // SIGCHLD tells as well, only not in which order they ended
  }
  ranks_.push_back(std::move(rank));
  return {};
}

/// What the ranks do now: asked to end, they soon do something else.
void LocalRanks::NoteReports() {
  const TimePoint now = SteadyClock().Now();
  for (Rank& rank : ranks_) {
    if (rank.alive && rank.page && !rank.when_stopped) rank.when_stopped = rank.page->Read(now);
  }
}

void LocalRanks::SignalRanks(int signo) {
  if (Ends(signo)) NoteReports();
  for (const Rank& rank : ranks_) {
    if (!rank.alive) continue;  // so the number below is still the rank's: we have not reaped it
    // A rank may have moved to another group; then its own has nobody.
    const bool reached = GoesToGroup(signo) && ::kill(-rank.child.pid, signo) == 0;
    if (!reached) ::kill(rank.child.pid, signo);
    if (!Ends(signo)) continue;
    const std::optional<ProcessInfo> process = FindProcess(rank.child.pid);
    if (process && process->state == 'T') ::kill(-rank.child.pid, SIGCONT);  // or it cannot end
  }
}

void LocalRanks::KillAll() {
  NoteReports();
  if (group_) group_->Kill();
  for (const ProcessInfo& process : Descendants(::getpid())) SignalProcess(process, SIGKILL);
  for (const Rank& rank : ranks_) {
    if (rank.alive) ::kill(rank.child.pid, SIGKILL);  // also without /proc
  }
}

void LocalRanks::OnReady(Token token) {
  switch (token.kind) {
    case Token::Kind::kRank:
      ReapRank(token.index);
      children_ready_ = true;
      break;
    case Token::Kind::kChildren:
      children_ready_ = true;
      break;
    case Token::Kind::kStream:
      pipes_.OnReadable(token.index);
      break;
    default:  // not of a host
      break;
  }
}

void LocalRanks::FinishReady() {
  // Last, because the ranks' own descriptors tell in which order they ended.
  if (std::exchange(children_ready_, false)) ReapChildren();
}

void LocalRanks::FinishRound() {
  const int signo = std::exchange(leftover_signal_due_, 0);
  if (signo == 0) return;
  const auto known = [this](pid_t pid) {
    return RunningRank(pid) != nullptr || signalled_leftovers_.contains(pid);
  };
  for (const ProcessInfo& process : Children(known)) {
    signalled_leftovers_.insert(process.pid);
    // Members of a rank's group got it with the rank.
    if (GoesToGroup(signo) && rank_by_pid_.contains(process.group)) continue;
    SignalProcess(process, signo);
    listener_->LeftoverSignalled(
        {.pid = process.pid, .name = process.name, .state = process.state});
  }
}

void LocalRanks::ReapRank(std::uint32_t index) {
  const Rank& rank = ranks_[index];
  if (!rank.alive) return;
  int status = 0;
  rusage usage{};
  if (::wait4(rank.child.pid, &status, WNOHANG, &usage) != rank.child.pid) return;
  ChildEnded(rank.child.pid, status, usage.ru_maxrss);
}

void LocalRanks::ReapChildren() {
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
      nobody_left_ = true;  // ECHILD
      return;
    }
  }
}

void LocalRanks::ChildEnded(pid_t pid, int wait_status, long peak_memory_kib) {
  Rank* rank = RunningRank(pid);
  if (rank == nullptr) {
    signalled_leftovers_.erase(pid);
    return listener_->LeftoverEnded();
  }
  RankExit exit{.rank = rank->number,
                .pid = pid,
                .status = ExitStatus::FromWait(wait_status),
                .peak_memory_kib = peak_memory_kib,
                .memory_hint = "",
                .lost_because = ""};
  if (rank->when_stopped) {
    exit.report = *rank->when_stopped;
  } else if (rank->page) {
    exit.report = rank->page->Read(SteadyClock().Now());
  }
  rank->page.reset();
  rank->alive = false;
  if (rank->child.pidfd.valid()) poller_->Forget(rank->child.pidfd.get());
  rank->child.pidfd.Reset();
  if (exit.status.signal == SIGKILL && memory_hint_.empty()) memory_hint_ = oom_.Hint();
  exit.memory_hint = memory_hint_;
  listener_->RankEnded(exit);
}

/// The rank whose process this is; null when there is none, or it has ended and been reaped.
LocalRanks::Rank* LocalRanks::RunningRank(pid_t pid) {
  const auto known = rank_by_pid_.find(pid);
  if (known == rank_by_pid_.end()) return nullptr;
  Rank* rank = &ranks_[known->second];
  return rank->alive ? rank : nullptr;
}

std::vector<pid_t> LocalRanks::Pids() const {
  std::vector<pid_t> pids;
  for (const Rank& rank : ranks_) pids.push_back(rank.child.pid);
  return pids;
}

std::vector<OtherProcess> LocalRanks::Unkillable() const {
  std::vector<OtherProcess> left;
  for (const ProcessInfo& process : Descendants(::getpid())) {
    left.push_back({.pid = process.pid, .name = process.name, .state = process.state});
  }
  return left;
}

}  // namespace hvl::launcher
