// Who is to blame when the world ends: the first cause, not the consequence that happened to be
// seen first. Used by Planner.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "csrc/base/clock.h"
#include "horovodlite/status.h"

namespace hvl::plan {

/// One failure soon looks like many: a rank dies, another one fails because of that and leaves, a
/// third one sees that one's link end first. Every rank says goodbye with the cause it knows, so
/// the chain of blame can be followed: if A blames B, and B's own last words blame C, it was C. An
/// accusation is therefore held back until the accused is heard (its link ends or it says goodbye),
/// at most kGrace.
class Verdict {
 public:
  /// Longer than hosts differ in when they notice the silence of another one: a turn of the
  /// heartbeats.
  static constexpr Duration kGrace = std::chrono::milliseconds(500);

  Verdict(int rank, int size) : rank_(rank), size_(size) {}

  /// `accuser` (a peer, or this rank) ended because of `cause`, which is not OK. Without a culprit
  /// it is the accuser itself.
  void Accuse(int accuser, Status cause, TimePoint now);
  /// A peer said goodbye; `cause` OK = shutdown.
  void OnBye(int peer, const Status& cause, TimePoint now);
  /// A peer's link ended. `error` is the verdict if it ended without a goodbye.
  void OnLost(int peer, const Status& error, TimePoint now);
  /// No link leads to a peer any more, as one between has left; nobody is to blame. It may live.
  void OnOutOfReach(int peer);
  /// Not to be explained by anything else; ends the deliberation.
  void Decide(Status error);
  void Tick(TimePoint now);

  bool HasLeft(int peer) const { return StateOf(peer) == State::kLeft; }
  /// It has left, and not because of an error.
  bool HasShutDown(int peer) const { return HasLeft(peer) && gone_.at(peer).last_words.ok(); }
  /// OK until decided; then it does not change any more.
  const Status& final() const { return final_; }
  /// The best explanation so far for leaving because of `cause`.
  Status Explain(const Status& cause) const;
  std::optional<TimePoint> next_deadline() const;

 private:
  enum class State : std::uint8_t { kPresent, kLeft, kLost };
  struct Peer {
    State state = State::kPresent;
    Status last_words;  // kLeft: OK = shutdown. kLost: why, which may be another rank
  };

  State StateOf(int peer) const {
    const auto found = gone_.find(peer);
    return found == gone_.end() ? State::kPresent : found->second.state;
  }
  bool IsPeer(int rank) const { return rank >= 0 && rank < size_ && rank != rank_; }
  Status FollowBlame(Status cause) const;
  /// True when the one blamed can say nothing more about it.
  bool IsHeard(const Status& cause) const;
  void Deliberate();

  const int rank_;
  const int size_;
  std::map<int, Peer> gone_;  // those that are not present
  Status suspicion_;
  TimePoint deadline_;
  Status final_;
};

}  // namespace hvl::plan
