// How the runner carries out what the supervision decides: signals to ranks, and to what they
// leave.
#include <csignal>
#include <utility>

#include "csrc/base/str.h"
#include "launcher/process_tree.h"
#include "launcher/runner.h"

namespace hvl::launcher {
namespace {

/// A terminal sends these to the whole group in front, so the ranks' groups get them too. The
/// others reach the rank itself only: SIGTERM, say, would end the workers that feed a rank with
/// data, and with them the checkpoint that the rank is about to write.
bool GoesToGroup(int signo) {
  return signo == SIGINT || signo == SIGQUIT || signo == SIGTSTP || signo == SIGCONT;
}

}  // namespace

void Runner::Apply(const Effects& effects) {
  for (const Effect& effect : effects) {
    switch (effect.kind) {
      case Effect::Kind::kSignalRanks:
        SignalRanks(effect.signo);
        break;
      case Effect::Kind::kSignalLeftovers:
        leftover_signal_due_ = effect.signo;
        break;
      case Effect::Kind::kKillAll:
        KillAll();
        break;
      case Effect::Kind::kFindAwaited:
        FindAwaited();
        break;
    }
  }
}

void Runner::SignalRanks(int signo) {
  const bool ends = signo != SIGUSR1 && signo != SIGUSR2 && signo != SIGTSTP && signo != SIGCONT;
  for (const Rank& rank : ranks_) {
    if (!rank.alive) continue;  // so the number below is still the rank's: we have not reaped it
    // A rank may have moved to another group; then its own has nobody.
    const bool reached = GoesToGroup(signo) && ::kill(-rank.child.pid, signo) == 0;
    if (!reached) ::kill(rank.child.pid, signo);
    if (!ends) continue;
    const std::optional<ProcessInfo> process = FindProcess(rank.child.pid);
    if (process && process->state == 'T') ::kill(-rank.child.pid, SIGCONT);  // or it cannot end
  }
}

void Runner::SignalLeftovers() {
  const int signo = std::exchange(leftover_signal_due_, 0);
  const auto known = [this](pid_t pid) {
    return RunningRank(pid) != nullptr || signalled_leftovers_.contains(pid);
  };
  for (const ProcessInfo& process : Children(known)) {
    signalled_leftovers_.insert(process.pid);
    // Members of a rank's group got it with the rank.
    if (GoesToGroup(signo) && rank_by_pid_.contains(process.group)) continue;
    SignalProcess(process, signo);
    if (supervision_->cause() != EndCause::kNone) continue;
    leftover_names_ +=
        Format("{}{} (pid {})", leftover_names_.empty() ? "" : ", ", process.name, process.pid);
  }
}

void Runner::KillAll() {
  for (const ProcessInfo& process : Descendants(::getpid())) SignalProcess(process, SIGKILL);
  for (const Rank& rank : ranks_) {
    if (rank.alive) ::kill(rank.child.pid, SIGKILL);  // also without /proc
  }
}

void Runner::FindAwaited() {
  output_->ReadRest();  // the last words of who has just ended: more than one read is in no pipe
  const std::optional<int> rank = AwaitedRank(Summarize());
  if (rank && job_.options.verbose) {
    output_->Say(Format("waiting for rank {}, which others report as lost, to end", *rank));
  }
  Apply(supervision_->RankAwaited(rank, SteadyClock().Now()));
}

void Runner::ReportUnkillable() {
  for (const ProcessInfo& process : Descendants(::getpid())) {
    output_->Say(
        Format("could not end process {} ({}), state {}: it belongs to another user or "
               "the kernel holds it",
               process.pid, process.name, process.state));
  }
}

}  // namespace hvl::launcher
