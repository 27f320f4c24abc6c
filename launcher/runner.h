// The head of a job: has the ranks started, shows their output, has them stopped, judges.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/log.h"
#include "csrc/net/fd.h"
#include "csrc/net/secret.h"
#include "csrc/net/store.h"
#include "launcher/agents.h"
#include "launcher/door.h"
#include "launcher/head_address.h"
#include "launcher/job.h"
#include "launcher/local_ranks.h"
#include "launcher/network.h"
#include "launcher/output.h"
#include "launcher/poller.h"
#include "launcher/rank_host.h"
#include "launcher/spawn.h"
#include "launcher/supervision.h"
#include "launcher/verdict.h"

namespace hvl::launcher {

/// One attempt at the job. One object at a time, used by the main thread only. Requires that
/// SIGCHLD is blocked.
class Runner final : public RankListener {
 public:
  /// `front` is a pipe from the front process: a byte per signal that it received; its end means
  /// that the front process is gone.
  Runner(const Job& job, int restarts, const ProcessDefaults& defaults, net::UniqueFd front);
  ~Runner() override;
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

  // RankListener
  void RankWrote(int rank, bool is_stderr, std::string_view bytes) override;
  void StreamEnded(int rank, bool is_stderr) override;
  void RankEnded(const RankExit& exit) override;
  void LeftoverEnded() override;
  void LeftoverSignalled(const OtherProcess& process) override;

 private:
  void Introduce();
  Status SetUp();
  Status OpenHere();
  Logger StoreLogger() const;
  Refusal StartRanks();
  Refusal StartHere();
  RankOrder OrderOf(int rank) const;
  // On other hosts (runner_hosts.cc).
  Status OpenAgents();
  Refusal StartOnHosts();
  Refusal CallAgents();
  Refusal AwaitGuests();
  Refusal OrderRanks();
  Status Meet(const std::vector<KnownHost>& hosts);
  StartOrder OrderFor(const HostRanks& host, const Hello& hello) const;
  bool Await(const std::function<bool()>& condition);
  Refusal Interrupted() const;
  void LeaveHosts();
  void ReportHosts(std::string_view told);
  /// Waits for the next events and handles them.
  void Step();
  void Loop();
  void Dispatch(const std::vector<Token>& tokens);
  void ReadFront();
  void HearSignal(int signo);
  void SayLines(std::string_view text);
  void Apply(const Effects& effects);
  void FindAwaited();
  void Drain();
  void Report();
  JobEnd Summarize() const;
  std::map<int, StatusReport> Reports() const;
  void ReportUnkillable();

  Job job_;
  net::UniqueFd front_;
  JobFacts facts_;
  ReservedPort master_port_;
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<Output> output_;
  std::unique_ptr<net::StoreServer> store_;
  std::unique_ptr<Supervision> supervision_;
  net::Secret secret_;
  net::UniqueFd secret_fd_;
  const ProcessDefaults defaults_;
  std::unique_ptr<RankHost> host_;
  LocalRanks* here_ = nullptr;       // is host_, or
  Agents* agents_ = nullptr;         // is
  std::unique_ptr<Door> door_;       // while agents may come
  std::vector<AgentLink*> members_;  // the agents of the job, as job_.hosts
  std::map<int, RankExit> exits_;    // by rank
  std::string leftover_names_;       // of those that outlived a job that ended well
  bool started_ = false;             // every rank was
  bool told_to_stop_ = false;
  bool draining_ = false;
  int drain_signal_ = 0;  // that ended the wait for the screen
};

}  // namespace hvl::launcher
