// A whole world in one thread and in simulated time: the real planners of all ranks, links that
// keep their order, a data plane that needs every rank, programs and faults from a Scenario.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/plan/planner.h"
#include "tests/cpp/sim/checker.h"
#include "tests/cpp/sim/random.h"
#include "tests/cpp/sim/scenario.h"

namespace hvl::sim {

using PlannerFactory = std::function<std::unique_ptr<plan::Planner>(
    int rank, int size, std::uint64_t generation, plan::Options options)>;

struct Outcome {
  std::optional<std::string> violation;
  Statistics statistics;
  std::vector<std::string> trace;  ///< the last events, if asked for
};

class Simulation {
 public:
  Simulation(const Scenario& scenario, const PlannerFactory& make_planner, bool keep_trace);

  /// Runs to the end, or to the first violation. Call once.
  Outcome Run();

 private:
  enum class Kind : std::uint8_t {
    kAct,          // a rank goes on with its program
    kDeliver,      // the oldest item of a link arrives
    kBatchDone,    // the data plane of a rank has finished its batch
    kBatchFailed,  // or given up
    kTick,
    kFault,
    kEnd,  // a rank at the end of its program shuts down
  };
  struct Event {
    TimePoint at;
    std::uint64_t order = 0;  // ties: first planned, first happens
    Kind kind = Kind::kAct;
    int rank = 0;
    int peer = 0;            // kDeliver: the sender
    std::uint64_t data = 0;  // sequence, index of a fault

    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  struct Item {
    wire::Bytes frame;
    bool end = false;  // the link ends
    int lost = -1;     // with it, another rank that was reached over it; -1: the sender
  };
  struct Link {
    std::deque<Item> items;
    TimePoint last_arrival;
  };
  struct Ticket {
    std::size_t operation = 0;
    std::size_t tensors_left = 0;
  };
  enum class SetState : std::uint8_t { kUnknown, kLive, kFailed };
  enum class Life : std::uint8_t { kRunning, kGone };
  struct Rank {
    std::unique_ptr<plan::Planner> planner;
    Life life = Life::kRunning;
    bool over = false;  // it knows that nothing is negotiated any more
    bool leave_when_idle = false;

    // Program.
    std::size_t step = 0;
    std::vector<std::size_t> todo;  // operations of this step, not yet submitted
    bool step_begun = false;
    bool act_planned = false;
    bool unflushed = false;
    plan::Ticket next_ticket = 1;
    std::map<plan::Ticket, Ticket> tickets;        // not done
    std::vector<SetState> sets;                    // by process set
    bool joined = false;                           // its join is not done
    std::vector<bool> in_flight;                   // by name
    std::map<ProcessSetId, std::uint64_t> rounds;  // of unnamed operations, that have ended
    std::map<std::size_t, TimePoint> not_before;   // operation that is late

    // Data plane.
    std::deque<plan::Batch> queue;  // front = running, or at its gate
    bool at_gate = false;
    bool running = false;
    bool outcome_planned = false;  // of the running batch
    std::uint64_t started = 0;     // last sequence
    std::uint64_t finished = 0;
    bool frozen = false;  // as its planner counts

    TimePoint paused_until;
    std::optional<TimePoint> tick_planned;
  };

  Rank& At(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  Link& LinkOf(int from, int to) {
    return links_[static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to)];
  }
  void Plan(Duration after, Kind kind, int rank, int peer = 0, std::uint64_t data = 0);
  void Handle(const Event& event);
  void Trace(const std::function<std::string()>& text);

  // Programs.
  void Act(int rank);
  void PlanAct(int rank, Duration after);
  bool SubmitSome(int rank);
  void Submit(int rank, std::size_t operation);
  void FinishStep(int rank);
  enum class Readiness : std::uint8_t { kNow, kLater, kNever };
  Readiness ReadinessOf(int rank, std::size_t operation);
  void TicketDone(int rank, plan::Ticket ticket, bool well);
  void MaybeStray(int rank);

  // Planners.
  void Absorb(int rank, plan::Effects& effects);
  void TellWaits(int rank);
  bool IsBlocked(int rank);
  void CheckSilence(int rank, const plan::Effects& effects);
  void NotePlans(int rank);
  void PlanTick(int rank);
  void Leave(int rank, const Status& cause);

  // Network.
  void Send(int from, int to, Item item);
  void Deliver(int from, int to);
  void EndLinks(int rank);
  void EndStays();

  // Data plane.
  void StartBatch(int rank);
  void ReachGate(int rank);
  void PassGate(int rank);
  void Withdraw(int rank, std::uint64_t sequence);
  void RunBatch(int rank);
  void ConsiderBatches();
  void Consider(std::uint64_t sequence);
  bool CanFinish(const plan::Batch& batch) const;
  std::optional<int> Obstacle(int rank);
  void BatchDone(int rank, std::uint64_t sequence);
  void BatchFailed(int rank, std::uint64_t sequence, int blamed);

  void ApplyFault(const Fault& fault);

  const Scenario& scenario_;
  const bool keep_trace_;
  Random random_;
  Checker checker_;
  TimePoint now_{};
  TimePoint last_progress_{};
  std::uint64_t next_order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Rank> ranks_;
  std::unordered_map<std::uint64_t, Link> links_;  // by sender and receiver
  struct GateState {
    std::size_t published = 0;  // ranks
    std::uint64_t hash = 0;
    bool withdrawn = false;  // on some rank
    bool passed = false;     // likewise
    std::vector<int> waiting;
  };
  using GateKey = std::pair<std::uint32_t, std::uint64_t>;  // plan, count
  std::map<GateKey, GateState> gates_;
  struct Running {
    std::size_t begun = 0;  // ranks
    std::vector<int> unfinished;
  };
  std::map<std::uint64_t, Running> running_;  // batches, by sequence
  bool somebody_gone_ = false;
  std::vector<int> staying_;                    // leaders that have left
  std::set<std::pair<int, int>> out_of_reach_;  // from, to
  std::vector<std::vector<wire::Bytes>> stale_frames_;
  Statistics statistics_;
  std::deque<std::string> trace_;
};

}  // namespace hvl::sim
