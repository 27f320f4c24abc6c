// Decides what happens to a job when ranks end, signals arrive and time passes. Pure: events and
// the time go in, effects come out; the runner carries them out.
//
//   running --a rank fails--> noticing --1 s--> stopping --grace--> killing --> done
//      |------signal, --timeout-------------------^                    ^
//      '--all ranks ended--> tidying ------0.5 s--^    second SIGINT --'
//
// A rank that is long in ending may be the one that the others lost: when the first to end blames
// a rank that still runs, noticing goes on until that one has ended too, at most 5 s longer.
//
// In every phase: as soon as no process of the job is left, it is done.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/base/clock.h"
#include "launcher/exit_status.h"

namespace hvl::launcher {

struct Timing {
  /// After the first failure the other ranks may end by themselves: a rank that loses a peer gets
  /// an error from the runtime within this time, and its own last words tell more than a signal.
  Duration notice = std::chrono::seconds(1);
  /// And so much longer for a rank that is still ending while another one's last words blame it.
  Duration awaiting = std::chrono::seconds(5);
  Duration failure_grace = std::chrono::milliseconds(1500);  ///< SIGTERM to SIGKILL
  Duration signal_grace = std::chrono::seconds(30);  ///< the same when a signal ends the job
  /// After the last rank has ended: what its helper processes may take to end by themselves.
  Duration tidy = std::chrono::milliseconds(500);
  Duration kill_interval = std::chrono::milliseconds(50);  ///< SIGKILL again to what was born since
  Duration kill_limit = std::chrono::seconds(5);           ///< then leave what does not die
  std::optional<Duration> timeout;
};

/// What ended the job, the first that did.
enum class EndCause : std::uint8_t {
  kNone,      ///< all ranks ended well
  kFailure,   ///< a rank failed
  kSignal,    ///< hvlrun was told to stop
  kTimeout,   ///< --timeout
  kDeserted,  ///< the front process is gone
  kLaunch,    ///< a rank could not be started
};

/// How one rank ended.
struct RankEnd {
  int rank = 0;
  ExitStatus status;
  TimePoint at{};
  bool asked_to_stop = false;  ///< hvlrun had sent it a signal to end before
};

struct Effect {
  enum class Kind : std::uint8_t {
    kSignalRanks,      ///< send `signo` to the ranks that live
    kSignalLeftovers,  ///< and to processes whose rank has ended, once each
    kKillAll,          ///< SIGKILL to every process of the job
    kFindAwaited,      ///< find out which running rank is blamed, and call RankAwaited
  };
  Kind kind = Kind::kSignalRanks;
  int signo = 0;

  bool operator==(const Effect&) const = default;
};
using Effects = std::vector<Effect>;

/// True for INT, TERM, HUP and QUIT.
bool AsksToStop(int signo);

class Supervision {
 public:
  enum class Phase : std::uint8_t { kRunning, kNoticing, kStopping, kTidying, kKilling, kDone };

  Supervision(int rank_count, const Timing& timing, TimePoint start);

  Effects RankEnded(int rank, const ExitStatus& status, TimePoint now);
  /// A process that outlived its rank has ended; its own children may now be up.
  Effects LeftoverEnded();
  /// A signal that hvlrun received: one that asks to stop (INT, TERM, HUP, QUIT), or one to pass
  /// on.
  Effects SignalReceived(int signo, TimePoint now);
  Effects FrontGone(TimePoint now);
  /// Not all ranks have been started, and none will be any more.
  Effects LaunchFailed(TimePoint now);
  Effects TimePassed(TimePoint now);
  /// The answer to kFindAwaited: the rank that still runs and is blamed by the first to end badly,
  /// over however many others; or nothing.
  Effects RankAwaited(std::optional<int> rank, TimePoint now);
  /// No process of the job exists any more.
  void NobodyLeft();

  /// When to call TimePassed at the latest.
  std::optional<TimePoint> deadline() const { return deadline_; }
  Phase phase() const { return phase_; }
  EndCause cause() const { return cause_; }
  int stop_signal() const { return stop_signal_; }            ///< of cause kSignal
  const std::vector<RankEnd>& ends() const { return ends_; }  ///< in the order in which they ended
  TimePoint start() const { return start_; }

 private:
  Effects Stop(int signo, Duration grace, TimePoint now);
  Effects Kill(TimePoint now);
  Effects AllRanksEnded(TimePoint now);
  bool all_ended() const { return static_cast<int>(ends_.size()) == rank_count_; }

  const int rank_count_;
  const Timing timing_;
  const TimePoint start_;
  Phase phase_ = Phase::kRunning;
  EndCause cause_ = EndCause::kNone;
  int stop_signal_ = 0;
  bool launch_failed_ = false;
  std::optional<int> awaited_;  // kNoticing, once the others have had their time
  TimePoint await_until_{};
  int leftover_signal_ = 0;  // what processes get that outlive their rank while we stop
  std::optional<TimePoint> deadline_;
  TimePoint give_up_at_{};  // kKilling
  std::vector<RankEnd> ends_;
};

}  // namespace hvl::launcher
