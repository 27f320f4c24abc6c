// How the runner carries out what the supervision decides.
#include "csrc/base/str.h"
#include "launcher/runner.h"

namespace hvl::launcher {

void Runner::Apply(const Effects& effects) {
  for (const Effect& effect : effects) {
    switch (effect.kind) {
      case Effect::Kind::kSignalRanks:
        host_->SignalRanks(effect.signo);
        break;
      case Effect::Kind::kSignalLeftovers:
        host_->SignalLeftovers(effect.signo);
        break;
      case Effect::Kind::kKillAll:
        host_->KillAll();
        break;
      case Effect::Kind::kFindAwaited:
        FindAwaited();
        break;
    }
  }
}

void Runner::FindAwaited() {
  host_->ReadRest();  // the last words of who has just ended: more than one read is in no pipe
  const std::optional<int> rank = AwaitedRank(Summarize());
  if (rank && job_.options.verbose) {
    output_->Say(Format("waiting for rank {}, which others report as lost, to end", *rank));
  }
  Apply(supervision_->RankAwaited(rank, SteadyClock().Now()));
}

void Runner::ReportUnkillable() {
  for (const OtherProcess& process : host_->Unkillable()) {
    output_->Say(
        Format("could not end process {} ({}), state {}: it belongs to another user or "
               "the kernel holds it",
               process.pid, process.name, process.state));
  }
}

}  // namespace hvl::launcher
