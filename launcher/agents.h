// The hosts of a job that runs on several: one agent each, called, ordered and ended together.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/net/fd.h"
#include "launcher/agent_link.h"
#include "launcher/env_block.h"
#include "launcher/rank_host.h"
#include "launcher/spawn.h"

namespace hvl::launcher {

/// Starters that wait for an answer at once; a log-in server refuses more than so many.
inline constexpr std::size_t kMaxCalling = 64;

/// Requires that SIGCHLD is blocked and that all children of this process belong to the job.
class Agents final : public RankHost {
 public:
  Agents(Poller* poller, RankListener* listener, const ProcessDefaults& defaults,
         std::function<void(int signo)> on_signal);

  Status Open();
  /// Will be called when its turn comes. `env` is that of the starter.
  void Add(const std::string& host, Starter starter);
  /// One that has come by itself.
  Status AddGuest(net::UniqueFd connection, const net::LinkKeys& keys);
  void set_starter_env(EnvBlock env) { starter_env_ = std::move(env); }

  const std::vector<std::unique_ptr<AgentLink>>& links() const { return links_; }
  /// Every agent has said hello, or is lost.
  bool all_answered() const;
  /// Every agent has carried out its order, or is lost.
  bool all_started() const;
  /// No starter is left on this machine.
  bool gone() const;

  void SignalRanks(int signo) override;
  void SignalLeftovers(int signo) override;
  void KillAll() override;
  void SetReading(bool is_stderr, bool on) override;
  bool ReadRest() override { return false; }
  void OnReady(Token token) override;
  void FinishReady() override;
  void FinishRound() override;
  std::optional<TimePoint> deadline() const override;
  void OnTime(TimePoint now) override;
  bool nobody_left() const override;
  bool drained() const override;
  std::vector<OtherProcess> Unkillable() const override;

 private:
  void CallMore();

  Poller* const poller_;
  RankListener* const listener_;
  const ProcessDefaults defaults_;
  const std::function<void(int signo)> on_signal_;
  net::UniqueFd child_signals_;
  bool children_ready_ = false;
  EnvBlock starter_env_;
  std::vector<std::unique_ptr<AgentLink>> links_;
  std::vector<Starter> starters_;  // by link; empty program = it came by itself
  std::size_t called_ = 0;         // links from the front on
  bool stopped_ = false;           // nobody is called any more
  Pulse pulse_;
};

/// Ends what is left of this process's descendants, with SIGKILL, at most in this time.
void EndDescendants(Duration limit);

}  // namespace hvl::launcher
