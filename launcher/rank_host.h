// The ranks of one host, wherever it is: what the head of a job can ask of them, and what it hears.
// Two implementations: LocalRanks (this machine), AgentLink (a machine behind a stream of bytes).
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/status_page.h"
#include "launcher/exit_status.h"
#include "launcher/poller.h"

namespace hvl::launcher {

/// How the process of a rank ended.
struct RankExit {
  int rank = 0;
  pid_t pid = 0;
  ExitStatus status;
  long peak_memory_kib = 0;
  std::string memory_hint;   ///< "" when nothing points at the out-of-memory killer
  std::string lost_because;  ///< of a status that is lost: what happened to its host
  /// What its runtime said last; of a rank that was asked to end, before that.
  StatusReport report = {};

  bool operator==(const RankExit&) const = default;
};

/// A process that is no rank: one that outlived its rank, or that nobody can end.
struct OtherProcess {
  pid_t pid = 0;
  std::string name;
  char state = '?';  ///< as in /proc

  bool operator==(const OtherProcess&) const = default;
};

/// Hears what happens to the ranks of all hosts, on the thread that calls into RankHost.
class RankListener {
 public:
  virtual ~RankListener() = default;
  /// Bytes that a rank has written, in order for each of its two streams.
  virtual void RankWrote(int rank, bool is_stderr, std::string_view bytes) = 0;
  /// The last process that could write to the stream is gone.
  virtual void StreamEnded(int rank, bool is_stderr) = 0;
  virtual void RankEnded(const RankExit& exit) = 0;
  /// A process that outlived its rank has ended.
  virtual void LeftoverEnded() = 0;
  /// SignalLeftovers() has reached this one for the first time.
  virtual void LeftoverSignalled(const OtherProcess& process) = 0;
};

/// Used by one thread, which never blocks in here. After nobody_left() all requests are void.
class RankHost {
 public:
  virtual ~RankHost() = default;

  /// To the ranks that live.
  virtual void SignalRanks(int signo) = 0;
  /// To the processes whose rank has ended, once each; carried out by FinishRound().
  virtual void SignalLeftovers(int signo) = 0;
  /// SIGKILL to every process of the job.
  virtual void KillAll() = 0;
  /// Whether to read this stream of the ranks that are shown: while the screen is behind, they
  /// shall wait.
  virtual void SetReading(bool is_stderr, bool on) = 0;
  /// Reads what the ranks have written until now, as far as reading is on; false when there was
  /// nothing.
  virtual bool ReadRest() = 0;

  /// A descriptor of this host is ready.
  virtual void OnReady(Token token) = 0;
  /// All that were ready together have been told.
  virtual void FinishReady() = 0;
  /// What happened has been judged.
  virtual void FinishRound() = 0;
  /// When to call OnTime at the latest.
  virtual std::optional<TimePoint> deadline() const = 0;
  virtual void OnTime(TimePoint now) = 0;

  /// No process of the job exists on this host any more.
  virtual bool nobody_left() const = 0;
  /// Nothing that the ranks wrote is on its way any more, once ReadRest() has found nothing.
  virtual bool drained() const = 0;
  /// Processes that SIGKILL has not ended.
  virtual std::vector<OtherProcess> Unkillable() const = 0;
};

}  // namespace hvl::launcher
