// The ranks of this machine: starts them, reads their output, signals them and what they leave,
// and sees how they end.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/net/fd.h"
#include "horovodlite/status.h"
#include "launcher/env_block.h"
#include "launcher/job_group.h"
#include "launcher/oom_watch.h"
#include "launcher/process_tree.h"
#include "launcher/processors.h"
#include "launcher/rank_host.h"
#include "launcher/rank_page.h"
#include "launcher/rank_pipes.h"
#include "launcher/spawn.h"

namespace hvl::launcher {

/// What all ranks of a host execute.
struct RankCommand {
  std::string program;                 ///< path
  std::vector<std::string> arguments;  ///< with the name it was called by first
};

struct RankOrder {
  int rank = 0;
  EnvBlock env;
  Processors processors;  ///< that it may run on; empty = as this process
  bool shown = true;      ///< its output is for the screen, not for files only
  int stdin_fd = -1;      ///< -1 = nothing to read
};

/// Used by the thread that lives as long as the ranks shall, one object at a time. Requires that
/// SIGCHLD is blocked, and that all children of this process belong to the job. Tokens are of the
/// kinds kChildren, kRank and kStream.
class LocalRanks final : public RankHost {
 public:
  LocalRanks(Poller* poller, RankListener* listener, const ProcessDefaults& defaults);

  /// Before the first rank is started.
  Status Open();
  /// Ranks are started in a control group of their own from now on, where there can be one. `line`
  /// is as for GroupMark().
  void OpenGroup(const std::string& job_id, int line);
  /// Why they are not; "" when they are.
  const std::string& no_group() const { return no_group_; }
  Refusal Start(const RankCommand& command, RankOrder order);
  /// The start was refused: sees who is there, because no signal will tell when nobody is.
  void Abandon() { ReapChildren(); }
  /// Of all ranks that were started, in that order.
  std::vector<pid_t> Pids() const;
  /// What the rank wrote before it ended.
  void ReadRestOf(int rank) { pipes_.ReadRestOf(rank); }
  /// While held, no rank's output is read.
  void HoldOutput(bool held) { pipes_.Hold(held); }

  void SignalRanks(int signo) override;
  void SignalLeftovers(int signo) override { leftover_signal_due_ = signo; }
  void KillAll() override;
  void SetReading(bool is_stderr, bool on) override { pipes_.SetReading(is_stderr, on); }
  bool ReadRest() override { return pipes_.ReadRest(); }
  void OnReady(Token token) override;
  void FinishReady() override;
  void FinishRound() override;
  std::optional<TimePoint> deadline() const override { return std::nullopt; }
  void OnTime(TimePoint /*now*/) override {}
  bool nobody_left() const override { return nobody_left_; }
  bool drained() const override { return !pipes_.paused(); }
  std::vector<OtherProcess> Unkillable() const override;

 private:
  struct Rank {
    int number = 0;
    Child child;
    bool alive = false;
    std::unique_ptr<RankPage> page;            // null where the system gives none
    std::optional<StatusReport> when_stopped;  // what it did when it was first asked to end
  };

  void ReapRank(std::uint32_t index);
  void ReapChildren();
  void ChildEnded(pid_t pid, int wait_status, long peak_memory_kib);
  Rank* RunningRank(pid_t pid);
  void NoteReports();

  Poller* const poller_;
  RankListener* const listener_;
  const ProcessDefaults defaults_;
  RankPipes pipes_;
  net::UniqueFd child_signals_;
  net::UniqueFd no_input_;
  OomWatch oom_;
  std::unique_ptr<JobGroup> group_;  // null where there can be none
  std::string no_group_ = "not asked for";
  std::string memory_hint_;
  std::vector<Rank> ranks_;                             // in the order of their start
  std::unordered_map<pid_t, std::size_t> rank_by_pid_;  // groups of ranks have these numbers too
  bool children_ready_ = false;
  bool nobody_left_ = false;
  // Which leftovers there are is looked up once per round, not for every rank that ends.
  int leftover_signal_due_ = 0;
  std::set<pid_t> signalled_leftovers_;  // until they are reaped
};

}  // namespace hvl::launcher
