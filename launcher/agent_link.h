// The head's end of the stream to one agent: the ranks of a host that is reached through it.
#pragma once

#include <sys/types.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/net/fd.h"
#include "launcher/agent_frames.h"
#include "launcher/frame_outlet.h"
#include "launcher/rank_host.h"
#include "launcher/spawn.h"

namespace hvl::launcher {

/// How long a starter (ssh, say) may take until its agent answers.
inline constexpr Duration kAnswerLimit = std::chrono::seconds(30);

/// A program of this machine whose standard streams lead to an agent.
struct Starter {
  std::string program;                 ///< path
  std::vector<std::string> arguments;  ///< with its name first
};

/// Tokens are of the kinds kAgentIn, kAgentOut and kAgentError, with the link's index.
class AgentLink final : public RankHost {
 public:
  enum class State : std::uint8_t {
    kWaiting,   ///< not called yet
    kCalling,   ///< no answer yet
    kReady,     ///< has said hello
    kOrdered,   ///< has the order to start or to examine
    kRunning,   ///< the ranks have been started
    kRefused,   ///< they could not
    kExamined,  ///< the answer to ExamineOrder is there
    kEmpty,     ///< no process is left, output may follow
    kFinished,  ///< nothing follows
    kLost,      ///< the stream has broken, or the other end breaks the rules
  };

  /// `host` is its name in the list of hosts, or "": then it is what the agent says; `on_signal`
  /// hears a signal that the agent was sent.
  AgentLink(std::uint32_t index, std::string host, Poller* poller, RankListener* listener,
            std::function<void(int signo)> on_signal);
  ~AgentLink() override;
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  /// Calls the agent by a program, or takes a connection that it has made itself.
  Refusal Call(const Starter& starter, EnvBlock env, const ProcessDefaults& defaults);
  Status Take(net::UniqueFd connection, const std::optional<net::LinkKeys>& keys);
  void AddTo(Pulse* pulse) { pulse->Add(outlet_); }

  const std::string& host() const { return host_; }
  /// By which an agent came that was not called; else "".
  const std::string& peer_address() const { return peer_address_; }
  State state() const { return state_; }
  const Hello& hello() const { return hello_; }           ///< from kReady on
  const Started& started() const { return started_; }     ///< of kRunning and kRefused
  const Examined& examined() const { return examined_; }  ///< of kExamined
  /// The agent's clock before this machine's, at most; the way of its hello is in it.
  Duration clock_ahead() const { return clock_ahead_; }
  /// Of kLost: why, in the words of those who know.
  const std::string& trouble() const { return trouble_; }
  /// Nothing of the starter is left on this machine.
  bool gone() const { return starter_ == 0 && state_ >= State::kFinished; }

  /// It cannot be called.
  void Fail(const std::string& why) { Lose(why); }

  /// Requires kReady.
  void Order(const StartOrder& order);
  void Order(const ExamineOrder& order);
  /// Ends the connection without an order.
  void Dismiss();
  /// Looks whether the starter has ended.
  void Reap();

  void SignalRanks(int signo) override;
  void SignalLeftovers(int signo) override;
  void KillAll() override;
  void SetReading(bool is_stderr, bool on) override;
  bool ReadRest() override { return false; }
  void OnReady(Token token) override;
  void FinishReady() override {}
  void FinishRound() override { WatchOutlet(); }
  std::optional<TimePoint> deadline() const override;
  void OnTime(TimePoint now) override;
  bool nobody_left() const override { return state_ >= State::kEmpty; }
  bool drained() const override { return state_ >= State::kFinished; }
  std::vector<OtherProcess> Unkillable() const override { return unkillable_; }

 private:
  struct Rank {
    int number = 0;
    pid_t pid = 0;
    bool ended = false;
  };

  void ReadFrames();
  void ReadWords();
  Status HandleFrames();
  Status Handle(const AgentFrame& frame);
  Status HandleStarted(const Started& started);
  Status HandleEnded(const RankExit& exit);
  Rank* FindRank(int number);
  bool in_job() const { return state_ == State::kOrdered || state_ == State::kRunning; }
  void SendIfInJob(const HeadFrame& frame);
  void Open(net::UniqueFd in, net::UniqueFd out, const std::optional<net::LinkKeys>& keys);
  void CloseStream();
  void StreamBroke(const std::string& how);
  void Lose(std::string trouble);
  std::string StarterWords() const;
  void WatchOutlet();

  const std::uint32_t index_;
  std::string host_;  // "" until an agent that came by itself has said hello
  Poller* const poller_;
  RankListener* const listener_;
  const std::function<void(int signo)> on_signal_;
  State state_ = State::kWaiting;
  pid_t starter_ = 0;
  std::string starter_name_;
  std::optional<ExitStatus> starter_end_;
  std::string peer_address_;
  net::UniqueFd from_agent_;
  std::shared_ptr<FrameOutlet> outlet_;
  bool outlet_watched_ = false;
  net::UniqueFd words_from_;
  std::string words_;  // the last that the starter and the agent have said
  FrameInlet inlet_;
  FrameReader reader_;
  Hello hello_;
  Started started_;
  Examined examined_;
  Duration clock_ahead_{};
  std::vector<Rank> ranks_;
  std::array<bool, 2> reading_ = {true, true};
  std::vector<OtherProcess> unkillable_;
  std::string trouble_;
  std::string broken_;     // what happened to the stream, while its starter's end is awaited
  TimePoint heard_at_{};   // of the agent
  TimePoint answer_by_{};  // kCalling
  TimePoint close_by_{};   // the starter's end is awaited until then
};

}  // namespace hvl::launcher
