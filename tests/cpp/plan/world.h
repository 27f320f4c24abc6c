// A world of planners in one thread, for tests: messages travel through one queue per link, time
// stands still unless told, and what the planners want is kept for inspection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/plan/planner.h"
#include "tests/support/batches.h"

namespace hvl::plan {

inline wire::Signature Allreduce(std::string name, Shape shape = {4},
                                 DType dtype = DType::kFloat32) {
  wire::Signature signature;
  signature.kind = OpKind::kAllreduce;
  signature.name = std::move(name);
  signature.tensors.push_back({dtype, 0, std::move(shape)});
  return signature;
}

inline wire::Signature Broadcast(std::string name, int root = 0, DType dtype = DType::kFloat32) {
  wire::Signature signature = Allreduce(std::move(name), {4}, dtype);
  signature.kind = OpKind::kBroadcast;
  signature.root_rank = root;
  return signature;
}

/// `trailing`: the dimensions after the first one.
inline wire::Signature Allgather(std::string name, Shape trailing = {}) {
  wire::Signature signature = Allreduce(std::move(name), std::move(trailing));
  signature.kind = OpKind::kAllgather;
  return signature;
}

inline wire::Signature Barrier(std::string name) {
  wire::Signature signature;
  signature.kind = OpKind::kBarrier;
  signature.name = std::move(name);
  return signature;
}

inline wire::Signature Alltoall(std::string name, Shape trailing = {}) {
  wire::Signature signature = Allgather(std::move(name), std::move(trailing));
  signature.kind = OpKind::kAlltoall;
  return signature;
}

inline wire::Signature Join(std::string name = "join.noname.0") {
  wire::Signature signature = Barrier(std::move(name));
  signature.kind = OpKind::kJoin;
  return signature;
}

/// The registration of a process set; without ranks its removal.
inline wire::Signature Registration(ProcessSetId id, std::vector<std::int32_t> ranks) {
  wire::Signature signature =
      Barrier(Format("process_set.{}.{}", ranks.empty() ? "remove" : "add", id));
  signature.kind = OpKind::kProcessSet;
  signature.process_set = id;
  signature.ranks = std::move(ranks);
  return signature;
}

inline wire::Signature In(ProcessSetId set, wire::Signature signature) {
  signature.process_set = set;
  return signature;
}

inline wire::Signature Group(std::string name, std::vector<wire::TensorSignature> tensors) {
  wire::Signature signature;
  signature.name = std::move(name);
  signature.tensors = std::move(tensors);
  return signature;
}

class World {
 public:
  static constexpr std::uint64_t kGeneration = 7;

  explicit World(int size, Options options = {}) : size_(size), ranks_(Count(size)) {
    for (int rank = 0; rank < size; ++rank) {
      At(rank).planner = Planner::Create(rank, size, kGeneration, options);
    }
  }

  int size() const { return size_; }
  TimePoint now() const { return now_; }
  Planner& planner(int rank) { return *At(rank).planner; }

  // What a rank does. Tickets are 1, 2, 3, ... on each rank.

  Ticket Submit(int rank, wire::Signature signature, std::vector<std::int64_t> first_dims = {},
                bool transient = false) {
    const Ticket ticket = At(rank).next_ticket++;
    Effects effects;
    At(rank).names[ticket] = signature.name;
    const std::uint64_t round = RoundOf(rank, signature.process_set);
    planner(rank).Submit(
        {ticket, std::move(signature), std::move(first_dims), transient, {}, round}, now_, effects);
    Absorb(rank, std::move(effects));
    return ticket;
  }
  void Flush(int rank) {
    Effects effects;
    planner(rank).Flush(now_, effects);
    Absorb(rank, std::move(effects));
  }
  /// An unnamed operation, submitted at a place of the program.
  Ticket SubmitAt(int rank, std::string site, wire::Signature signature, bool transient = true) {
    const Ticket ticket = At(rank).next_ticket++;
    Effects effects;
    At(rank).names[ticket] = signature.name;
    const std::uint64_t round = RoundOf(rank, signature.process_set);
    planner(rank).Submit({ticket, std::move(signature), {}, transient, std::move(site), round},
                         now_, effects);
    Absorb(rank, std::move(effects));
    Flush(rank);
    return ticket;
  }
  /// A thread waits for an operation.
  void Await(int rank, const std::string& name, Waiter waiter, ProcessSetId set = kWorldSet) {
    planner(rank).Awaited(set, name, waiter, now_);
  }
  /// An unnamed operation that blocks the rank.
  Ticket BlockIn(int rank, std::string site, const wire::Signature& signature) {
    const Ticket ticket = SubmitAt(rank, std::move(site), signature);
    Await(rank, signature.name, Waiter::kUnnamed, signature.process_set);
    return ticket;
  }
  void SubmitOn(const std::vector<int>& ranks, const wire::Signature& signature) {
    for (const int rank : ranks) SubmitNow(rank, signature);
    Deliver();
  }
  Ticket SubmitNow(int rank, wire::Signature signature, std::vector<std::int64_t> dims = {}) {
    const Ticket ticket = Submit(rank, std::move(signature), std::move(dims));
    Flush(rank);
    return ticket;
  }
  void SubmitEverywhere(const wire::Signature& signature, bool transient = false) {
    for (int rank = 0; rank < size_; ++rank) {
      Submit(rank, signature, {}, transient);
      Flush(rank);
    }
    Deliver();
  }
  /// The data plane of this rank, or of all, has finished everything handed to it.
  void FinishBatches(int rank) {
    if (At(rank).run.empty() || At(rank).finished_sequence == At(rank).run.back().sequence) return;
    At(rank).finished_sequence = At(rank).run.back().sequence;
    Effects effects;
    planner(rank).BatchFinished(At(rank).finished_sequence, now_, effects);
    Absorb(rank, std::move(effects));
  }
  void FinishBatches() {
    for (int rank = 0; rank < size_; ++rank) FinishBatches(rank);
    Deliver();
  }
  void Leave(int rank, const Status& cause = {}) {
    Effects effects;
    planner(rank).Leave(cause, now_, effects);
    Absorb(rank, std::move(effects));
    At(rank).gone = true;
  }
  void DataPlaneFailed(int rank, const Status& cause) {
    Effects effects;
    planner(rank).DataPlaneFailed(cause, now_, effects);
    Absorb(rank, std::move(effects));
  }
  void Lose(int rank, int peer) { LoseThrough(rank, peer, peer); }
  /// `culprit`: the leader of a host over which the peer was reached.
  void LoseThrough(int rank, int peer, int culprit) {
    Effects effects;
    const std::string how = Format("rank {} closed its link", culprit);
    planner(rank).PeerLost(peer, Status(StatusCode::kUnavailable, how, culprit), now_, effects);
    Absorb(rank, std::move(effects));
  }
  void Advance(Duration by) {
    Pass(by);
    Deliver();
  }
  /// Without the network.
  void Pass(Duration by) {
    now_ += by;
    for (int rank = 0; rank < size_; ++rank) {
      if (At(rank).gone) continue;
      const auto deadline = planner(rank).next_deadline();
      if (!deadline || *deadline > now_) continue;
      Effects effects;
      planner(rank).Tick(now_, effects);
      Absorb(rank, std::move(effects));
    }
  }

  // The network.

  void Receive(int from, int to, const wire::Bytes& frame) {
    if (At(to).gone) return;
    Effects effects;
    planner(to).Receive(from, frame, now_, effects);
    Absorb(to, std::move(effects));
  }
  /// Delivers the oldest frame of one link; false if there is none.
  bool DeliverOne(int from, int to) {
    auto& link = links_[{from, to}];
    if (link.empty()) return false;
    const wire::Bytes frame = std::move(link.front());
    link.pop_front();
    Receive(from, to, frame);
    return true;
  }
  void Deliver() {
    for (bool any = true; any;) {
      any = false;
      for (int from = 0; from < size_; ++from) {
        for (int to = 0; to < size_; ++to) any = DeliverOne(from, to) || any;
      }
    }
  }

  // What came of it.

  const std::vector<Batch>& run(int rank) const { return At(rank).run; }
  std::size_t withdrawals(int rank) const { return At(rank).withdrawals; }
  const std::vector<Notice>& notices(int rank) const { return At(rank).notices; }
  const std::vector<ReadyNote>& ready() const { return ranks_.front().ready; }
  const Status& fatal(int rank) const { return At(rank).fatal; }
  /// Rounds of the set's unnamed operations that have ended, as this rank knows.
  std::uint64_t RoundOf(int rank, ProcessSetId set = kWorldSet) const {
    const auto found = At(rank).rounds.find(set);
    return found == At(rank).rounds.end() ? 0 : found->second;
  }
  bool over(int rank) const { return At(rank).over; }
  const std::string& name(int rank, Ticket ticket) const { return At(rank).names.at(ticket); }
  bool finished(int rank, Ticket ticket) const { return At(rank).finish.contains(ticket); }
  const Status& outcome(int rank, Ticket ticket) const { return At(rank).finish.at(ticket); }
  std::size_t outcomes(int rank) const { return At(rank).finish.size(); }
  std::size_t frames() const { return frames_; }
  std::size_t frame_bytes() const { return frame_bytes_; }
  std::size_t frames_waiting(int from, int to) { return links_[{from, to}].size(); }
  const wire::Bytes& last_frame() const { return last_frame_; }

  /// The batches of a rank as text, e.g. "x y | z[1] | 4*0": names, tensors of groups by index,
  /// elements of what it takes part in because it has joined.
  std::string Batches(int rank) const {
    std::string text;
    for (const Batch& batch : run(rank)) {
      text += text.empty() ? "" : " | ";
      const std::vector<BatchEntry> entries = test::SingleTensors(batch);
      for (std::size_t i = 0; i < entries.size(); ++i) {
        const BatchEntry& entry = entries[i];
        if (i > 0) text += ' ';
        if (entry.zeros) {
          text += Format("{}*0", *entry.zeros);
          continue;
        }
        text += name(rank, entry.ticket);
        if (entry.first_tensor > 0) text += Format("[{}]", entry.first_tensor);
      }
    }
    return text;
  }

 private:
  struct Rank {
    std::unique_ptr<Planner> planner;
    bool gone = false;
    Ticket next_ticket = 1;
    std::uint64_t finished_sequence = 0;
    std::vector<Batch> run;
    std::size_t withdrawals = 0;
    std::map<Ticket, Status> finish;
    std::map<Ticket, std::string> names;
    std::map<ProcessSetId, std::uint64_t> rounds;
    std::vector<Notice> notices;
    std::vector<ReadyNote> ready;
    Status fatal;
    bool over = false;
  };

  static std::size_t Count(int size) { return static_cast<std::size_t>(size); }
  Rank& At(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Rank& At(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  void Absorb(int rank, Effects effects) {
    Rank& self = At(rank);
    for (Outgoing& outgoing : effects.send) {
      ++frames_;
      frame_bytes_ += outgoing.frame.size();
      last_frame_ = outgoing.frame;
      links_[{rank, outgoing.to}].push_back(std::move(outgoing.frame));
    }
    if (effects.withdraw) {
      std::erase_if(self.run,
                    [&](const Batch& batch) { return batch.sequence > *effects.withdraw; });
      ++self.withdrawals;
    }
    for (Batch& batch : effects.run) self.run.push_back(std::move(batch));
    for (const ProcessSetId set : effects.ended_rounds) ++self.rounds[set];
    for (Completion& completion : effects.finish) {
      // Twice would be a bug that the tests should see as such.
      if (!self.finish.emplace(completion.ticket, completion.status).second) {
        self.fatal = Status(StatusCode::kInternal, "a ticket completed twice");
      }
    }
    for (Notice& notice : effects.notices) self.notices.push_back(std::move(notice));
    for (ReadyNote& note : effects.ready) self.ready.push_back(std::move(note));
    if (!effects.fatal.ok()) self.fatal = effects.fatal;
    self.over = self.over || effects.over;
  }

  const int size_;
  TimePoint now_{};
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<wire::Bytes>> links_;
  std::size_t frames_ = 0;
  std::size_t frame_bytes_ = 0;
  wire::Bytes last_frame_;
};

}  // namespace hvl::plan
