// The supervisor process of a job: starts the ranks, carries their output, stops them, judges.
#pragma once

#include <sys/types.h>

#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/net/fd.h"
#include "csrc/net/store.h"
#include "launcher/job.h"
#include "launcher/network.h"
#include "launcher/oom_watch.h"
#include "launcher/output.h"
#include "launcher/poller.h"
#include "launcher/spawn.h"
#include "launcher/supervision.h"
#include "launcher/verdict.h"

namespace hvl::launcher {

/// One attempt at the job. One object at a time, used by the main thread only. Requires that
/// SIGCHLD is blocked.
class Runner {
 public:
  /// `front` is a pipe from the front process: a byte per signal that it received; its end means
  /// that the front process is gone.
  Runner(const Job& job, int restarts, const ProcessDefaults& defaults, net::UniqueFd front);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Returns hvlrun's exit status; then no process of the job is left.
  int Run();
  /// After Run: a rank has failed, all are gone, and nobody has asked hvlrun to stop.
  bool may_restart() const;
  /// Says it, and waits until the screen has taken it.
  void SayOnScreen(const std::string& text);
  /// For the next attempt; this one is over.
  net::UniqueFd TakeFront() { return std::move(front_); }

 private:
  struct Rank {
    Child child;
    bool alive = false;
    long peak_memory_kib = 0;
  };

  void Introduce();
  Status SetUp();
  Status OpenStore();
  Refusal StartRanks();
  Refusal StartRank(int rank);
  void Loop();
  void Dispatch(const std::vector<Token>& tokens);
  void ReadFront();
  void ReapRank(std::uint32_t rank);
  void ReapChildren();
  void ChildEnded(pid_t pid, int wait_status, long peak_memory_kib);
  Rank* RunningRank(pid_t pid);
  void Apply(const Effects& effects);
  void SignalRanks(int signo);
  void SignalLeftovers();
  void KillAll();
  void FindAwaited();
  void Drain();
  void Report();
  JobEnd Summarize() const;
  void ReportUnkillable();

  const Job& job_;
  net::UniqueFd front_;
  JobFacts facts_;
  ReservedPort master_port_;
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<Output> output_;
  std::unique_ptr<net::StoreServer> store_;
  std::unique_ptr<Supervision> supervision_;
  net::UniqueFd secret_;
  net::UniqueFd child_signals_;
  net::UniqueFd no_input_;
  const ProcessDefaults defaults_;
  OomWatch oom_;
  std::string memory_hint_;
  std::vector<Rank> ranks_;
  std::unordered_map<pid_t, std::size_t>
      rank_by_pid_;  // the groups of ranks have these numbers too
  // Which leftovers there are is looked up once per round, not for every rank that ends.
  int leftover_signal_due_ = 0;
  std::set<pid_t> signalled_leftovers_;  // until they are reaped
  std::string leftover_names_;           // of those that outlived a job that ended well
  bool started_ = false;                 // every rank was
  bool told_to_stop_ = false;
  bool draining_ = false;
  int drain_signal_ = 0;  // that ended the wait for the screen
};

}  // namespace hvl::launcher
