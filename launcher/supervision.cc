#include "launcher/supervision.h"

#include <csignal>

#include "csrc/base/check.h"

namespace hvl::launcher {

bool AsksToStop(int signo) {
  return signo == SIGINT || signo == SIGTERM || signo == SIGHUP || signo == SIGQUIT;
}

Supervision::Supervision(int rank_count, const Timing& timing, TimePoint start)
    : rank_count_(rank_count), timing_(timing), start_(start) {
  if (timing_.timeout) deadline_ = start + *timing_.timeout;
}

Effects Supervision::RankEnded(int rank, const ExitStatus& status, TimePoint now) {
  HVL_CHECK(!all_ended());
  const bool stopping = phase_ == Phase::kStopping || phase_ == Phase::kKilling;
  ends_.push_back({.rank = rank, .status = status, .at = now, .asked_to_stop = stopping});
  if (phase_ == Phase::kRunning && !status.ok()) {
    cause_ = EndCause::kFailure;
    phase_ = Phase::kNoticing;
    deadline_ = now + timing_.notice;
    await_until_ = *deadline_ + timing_.awaiting;
  }
  if (all_ended()) return AllRanksEnded(now);
  if (phase_ == Phase::kNoticing && awaited_ == rank) return {{Effect::Kind::kFindAwaited}};
  if (phase_ == Phase::kStopping) return {{Effect::Kind::kSignalLeftovers, leftover_signal_}};
  return {};
}

Effects Supervision::LeftoverEnded() {
  if (phase_ != Phase::kStopping) return {};
  return {{Effect::Kind::kSignalLeftovers, leftover_signal_}};
}

Effects Supervision::AllRanksEnded(TimePoint now) {
  switch (phase_) {
    case Phase::kRunning:
      phase_ = Phase::kTidying;
      deadline_ = now + timing_.tidy;
      return {};
    case Phase::kNoticing:
      return Stop(SIGTERM, timing_.failure_grace, now);
    case Phase::kStopping:
      return {{Effect::Kind::kSignalLeftovers, leftover_signal_}};
    case Phase::kTidying:
    case Phase::kKilling:
    case Phase::kDone:
      return {};
  }
  return {};
}

Effects Supervision::SignalReceived(int signo, TimePoint now) {
  if (phase_ == Phase::kKilling || phase_ == Phase::kDone) return {};
  if (!AsksToStop(signo)) return {{Effect::Kind::kSignalRanks, signo}};
  if (phase_ == Phase::kRunning) {
    cause_ = EndCause::kSignal;
    stop_signal_ = signo;
    // Ranks prepare for SIGTERM; that a terminal went away is hvlrun's affair.
    return Stop(signo == SIGHUP ? SIGTERM : signo, timing_.signal_grace, now);
  }
  // The job is ending already. Who interrupts now does not want to wait; who terminates may be a
  // batch system that repeats itself.
  if (signo == SIGINT || signo == SIGQUIT) return Kill(now);
  if (phase_ == Phase::kNoticing) return Stop(SIGTERM, timing_.failure_grace, now);
  return {};
}

Effects Supervision::FrontGone(TimePoint now) {
  if (phase_ == Phase::kKilling || phase_ == Phase::kDone) return {};
  if (cause_ == EndCause::kNone) cause_ = EndCause::kDeserted;
  return Kill(now);
}

Effects Supervision::LaunchFailed(TimePoint now) {
  // Told to stop before the start was over: then that is the reason.
  if (cause_ == EndCause::kNone || cause_ == EndCause::kFailure) cause_ = EndCause::kLaunch;
  launch_failed_ = true;
  return Kill(now);
}

Effects Supervision::TimePassed(TimePoint now) {
  if (!deadline_ || now < *deadline_) return {};
  switch (phase_) {
    case Phase::kRunning:
      cause_ = EndCause::kTimeout;
      return Stop(SIGTERM, timing_.failure_grace, now);
    case Phase::kNoticing:
      if (now < await_until_) return {{Effect::Kind::kFindAwaited}};
      return Stop(SIGTERM, timing_.failure_grace, now);
    case Phase::kTidying:
      return Stop(SIGTERM, timing_.failure_grace, now);
    case Phase::kStopping:
      return Kill(now);
    case Phase::kKilling:
      if (now >= give_up_at_) {
        phase_ = Phase::kDone;
        deadline_.reset();
        return {};
      }
      deadline_ = now + timing_.kill_interval;
      return {{Effect::Kind::kKillAll, SIGKILL}};
    case Phase::kDone:
      return {};
  }
  return {};
}

Effects Supervision::RankAwaited(std::optional<int> rank, TimePoint now) {
  if (phase_ != Phase::kNoticing) return {};
  awaited_ = rank;
  if (!awaited_) return Stop(SIGTERM, timing_.failure_grace, now);
  deadline_ = await_until_;
  return {};
}

void Supervision::NobodyLeft() {
  HVL_CHECK(all_ended() || launch_failed_);
  phase_ = Phase::kDone;
  deadline_.reset();
}

Effects Supervision::Stop(int signo, Duration grace, TimePoint now) {
  phase_ = Phase::kStopping;
  deadline_ = now + grace;
  leftover_signal_ = signo;
  return {{Effect::Kind::kSignalRanks, signo}, {Effect::Kind::kSignalLeftovers, signo}};
}

Effects Supervision::Kill(TimePoint now) {
  phase_ = Phase::kKilling;
  give_up_at_ = now + timing_.kill_limit;
  deadline_ = now + timing_.kill_interval;
  return {{Effect::Kind::kKillAll, SIGKILL}};
}

}  // namespace hvl::launcher
