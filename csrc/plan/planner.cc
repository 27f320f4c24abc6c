#include "csrc/plan/planner.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/plan/coordinator.h"
#include "csrc/plan/participant.h"
#include "csrc/plan/verdict.h"
#include "csrc/wire/codec.h"

namespace hvl::plan {
namespace {

/// Joins the two roles and the verdict: routes messages between them and the peers.
class PlannerImpl final : public Planner {
 public:
  PlannerImpl(int rank, int size, std::uint64_t generation, const Options& options)
      : rank_(rank),
        size_(size),
        generation_(generation),
        participant_(rank, size, generation, options),
        verdict_(rank, size) {
    if (rank == 0) coordinator_.emplace(size, generation, options);
  }

  void Submit(Submission&& submission, TimePoint now, Effects& effects) override {
    if (ended()) {
      effects.finish.push_back({submission.ticket, EndedError()});
      return;
    }
    participant_.Submit(std::move(submission), now, effects);
  }

  void Flush(TimePoint now, Effects& effects) override {
    if (ended()) return;
    for (wire::Announce& announce : participant_.TakeAnnouncements()) {
      Announce(std::move(announce), now, effects);
    }
    Exchange(now, effects);
  }

  void Receive(int from, std::span<const std::byte> frame, TimePoint now,
               Effects& effects) override {
    HVL_CHECK(from >= 0 && from < size_ && from != rank_, Format("frame from rank {}", from));
    if (ended() || verdict_.HasLeft(from)) return;
    const Result<std::uint64_t> generation = wire::PeekGeneration(frame);
    if (!generation.ok()) return Reject(from, generation.status(), effects);
    if (*generation != generation_) return;
    Result<wire::Message> message = wire::Decode(frame);
    if (!message.ok()) return Reject(from, message.status(), effects);
    std::visit([&](auto& value) { On(from, std::move(value), now, effects); }, *message);
  }

  void BatchFinished(std::uint64_t sequence, TimePoint now, Effects& effects) override {
    HVL_CHECK(sequence > batches_finished_ && sequence <= participant_.last_sequence(),
              Format("batch {} finished after {} of {}", sequence, batches_finished_,
                     participant_.last_sequence()));
    batches_finished_ = sequence;
    if (ended()) return;
    participant_.BatchFinished(sequence, now);
    if (!coordinator_) return;
    coordinator_->OnBatchFinished(sequence, now, effects);
    Exchange(now, effects);
  }

  void DataPlaneFailed(const Status& cause, TimePoint now, Effects& effects) override {
    HVL_CHECK(!cause.ok(), "a failure has a cause");
    if (ended()) return;
    verdict_.Accuse(rank_, cause, now);
    Pronounce(effects);
  }

  void PeerLost(int rank, const Status& cause, TimePoint now, Effects& effects) override {
    HVL_CHECK(rank >= 0 && rank < size_ && rank != rank_ && !cause.ok(),
              Format("rank {} lost: {}", rank, cause.ToString()));
    if (ended() || verdict_.HasLeft(rank)) return;
    // Another rank than the lost one: the leader that it was reached through.
    const int culprit = cause.culprit_rank() == Status::kNoRank ? rank : cause.culprit_rank();
    // Nothing is negotiated any more, so nobody needs the way that a leader kept up until it left.
    if (participant_.departed() && verdict_.HasShutDown(culprit)) {
      return verdict_.OnOutOfReach(rank);
    }
    const std::string pending = participant_.PendingText();
    const std::string waiting = pending.empty() ? "" : "; waiting for it: " + pending;
    verdict_.OnLost(rank, Status(cause.code(), cause.message() + waiting, culprit), now);
    Pronounce(effects);
  }

  void Leave(const Status& cause, TimePoint, Effects& effects) override {
    if (std::exchange(left_, true)) return;
    if (cause.ok() && !coordinator_ && !verdict_.HasLeft(0)) {
      participant_.StopToLeave();
      if (const auto stopped = participant_.TakeStopped()) Send(0, wire::Encode(*stopped), effects);
    }
    const wire::Bytes frame =
        wire::Encode(wire::Bye{.generation = generation_,
                               .batches_finished = batches_finished_,
                               .batches_begun = participant_.last_own_sequence(),
                               .cause = verdict_.Explain(cause)});
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !verdict_.HasLeft(peer)) Send(peer, frame, effects);
    }
  }

  void Tick(TimePoint now, Effects& effects) override {
    if (ended()) return;
    verdict_.Tick(now);
    Pronounce(effects);
    if (ended()) return;
    participant_.Tick(now);
    if (coordinator_) coordinator_->Tick(now, effects);
    Exchange(now, effects);
  }

  std::optional<TimePoint> next_deadline() const override {
    if (ended()) return std::nullopt;
    std::optional<TimePoint> deadline = verdict_.next_deadline();
    const auto note = [&deadline](std::optional<TimePoint> other) {
      if (!deadline || (other && *other < *deadline)) deadline = other;
    };
    note(participant_.next_deadline());
    if (coordinator_) note(coordinator_->next_deadline());
    return deadline;
  }

  std::size_t needed_submissions() const override {
    return ended() ? 1 : participant_.needed_submissions();
  }
  bool gathering() const override { return coordinator_ && coordinator_->gathering(); }
  std::size_t remembered_names() const override {
    return participant_.remembered_names() + (coordinator_ ? coordinator_->remembered_names() : 0);
  }
  void SetTracing(bool on) override {
    if (coordinator_) coordinator_->SetTracing(on);
  }
  void Awaited(ProcessSetId set, std::string_view name, Waiter waiter, TimePoint now) override {
    participant_.Awaited(set, name, waiter, now);
  }
  const PlanCounters& plan_counters() const override { return participant_.counters(); }

 private:
  bool ended() const { return left_ || !fatal_.ok(); }
  Status EndedError() const {
    if (!fatal_.ok()) return fatal_;
    return {StatusCode::kAborted, "this rank has left (shutdown)", rank_};
  }

  void On(int from, wire::Announce&& announce, TimePoint now, Effects& effects) {
    if (!coordinator_) return RejectText(from, "an announcement for the coordinator", effects);
    const Status status = coordinator_->OnAnnounce(from, std::move(announce), now, effects);
    if (!status.ok()) return Reject(from, status, effects);
    Exchange(now, effects);
  }

  void On(int from, wire::Decide&& decide, TimePoint now, Effects& effects) {
    if (from != 0) return RejectText(from, "a decision, which only rank 0 may make", effects);
    ApplyDecision(decide, now, effects);
    if (!ended()) Exchange(now, effects);
  }

  void On(int from, wire::Stopped&& stopped, TimePoint now, Effects& effects) {
    if (!coordinator_) return RejectText(from, "a message for the coordinator", effects);
    Stop(from, stopped, now, effects);
    Exchange(now, effects);
  }

  void On(int from, wire::Bye&& bye, TimePoint now, Effects& effects) {
    verdict_.OnBye(from, bye.cause, now);
    Pronounce(effects);
    if (ended() || !bye.cause.ok()) return;
    // What a departure means is decided by the coordinator, in order with everything else; that of
    // the coordinator itself comes after its last decision anyway.
    if (coordinator_) {
      Check(from, coordinator_->OnDeparture(from, bye.batches_finished, now), effects);
      Exchange(now, effects);
    } else if (from == 0) {
      const Status status =
          participant_.DepartCoordinator(bye.batches_finished, bye.batches_begun, effects);
      if (!status.ok()) End(status, effects);
    }
  }

  void Announce(wire::Announce&& announce, TimePoint now, Effects& effects) {
    if (!coordinator_) return Send(0, wire::Encode(announce), effects);
    const Status status = coordinator_->OnAnnounce(rank_, std::move(announce), now, effects);
    HVL_CHECK(status.ok(), status.message());
  }

  /// Brings what has been decided to all ranks, and acknowledges it where that is needed, until
  /// nobody has anything to say. The peers get encoded copies of the decisions.
  void Exchange(TimePoint now, Effects& effects) {
    while (!ended()) {
      if (!effects.fatal.ok()) return End(effects.fatal, effects);
      const bool speaks = Speak(now, effects);
      if (!coordinator_ || !(speaks || coordinator_->has_news())) return;
      for (Coordinator::Held& held : coordinator_->TakeHeld()) {
        const Status status =
            coordinator_->OnAnnounce(held.from, std::move(held.announce), now, effects);
        if (!status.ok()) return Reject(held.from, status, effects);
      }
      const std::vector<wire::Decide> decisions = coordinator_->TakeDecisions();
      for (const wire::Decide& decide : decisions) {
        Broadcast(decide, effects);
        ApplyDecision(decide, now, effects);
      }
    }
  }

  /// What the participant has to tell the coordinator of its own accord.
  bool Speak(TimePoint now, Effects& effects) {
    bool speaks = false;
    if (const std::optional<wire::Stopped> stopped = participant_.TakeStopped()) {
      speaks = true;
      if (coordinator_) {
        Stop(rank_, *stopped, now, effects);
      } else {
        Send(0, wire::Encode(*stopped), effects);
      }
    }
    if (participant_.announces()) {
      speaks = true;
      for (wire::Announce& announce : participant_.TakeAnnouncements()) {
        Announce(std::move(announce), now, effects);
      }
    }
    if (std::optional<wire::Announce> acknowledgement = participant_.TakeAcknowledgement()) {
      speaks = true;
      Announce(std::move(*acknowledgement), now, effects);
    }
    return speaks;
  }

  void Stop(int from, const wire::Stopped& stopped, TimePoint now, Effects& effects) {
    Check(from, coordinator_->OnStopped(from, stopped, now), effects);
  }

  /// What the coordinator says of a message: the culprit may be another rank than its sender.
  void Check(int from, const Status& status, Effects& effects) {
    if (status.ok()) return;
    const bool blames = status.culprit_rank() != Status::kNoRank;
    Reject(blames ? status.culprit_rank() : from, status, effects);
  }

  void Send(int to, wire::Bytes frame, Effects& effects) {
    if (participant_.frozen()) ++participant_.counters().frames;
    effects.send.push_back({to, std::move(frame)});
  }

  void Broadcast(const wire::Decide& decide, Effects& effects) {
    if (size_ == 1) return;
    const wire::Bytes frame = wire::Encode(decide);
    for (int peer = 1; peer < size_; ++peer) {
      if (!verdict_.HasLeft(peer)) Send(peer, frame, effects);
    }
  }

  void ApplyDecision(const wire::Decide& decide, TimePoint now, Effects& effects) {
    const Status status = participant_.Apply(decide, now, effects);
    if (status.ok()) return;
    if (status.code() != StatusCode::kInternal) return End(status, effects);
    HVL_CHECK(!coordinator_, status.message());
    Reject(0, status, effects);
  }

  void RejectText(int from, std::string_view what, Effects& effects) {
    Reject(from, Status(StatusCode::kInternal, Format("{}", what)), effects);
  }
  void Reject(int from, const Status& why, Effects& effects) {
    End(Status(StatusCode::kInternal,
               Format("rank {} sent a message that makes no sense: {}. All ranks must run the same "
                      "build of horovodlite",
                      from, why.message()),
               from),
        effects);
  }

  void Pronounce(Effects& effects) {
    if (!verdict_.final().ok()) End(verdict_.final(), effects);
  }
  void End(const Status& error, Effects& effects) {
    verdict_.Decide(error);
    fatal_ = error;
    effects.fatal = error;
  }

  const int rank_;
  const int size_;
  const std::uint64_t generation_;
  Participant participant_;
  std::optional<Coordinator> coordinator_;  // on rank 0
  Verdict verdict_;
  std::uint64_t batches_finished_ = 0;
  bool left_ = false;
  Status fatal_;
};

}  // namespace

BatchSpec SpecOf(const wire::Signature& signature) {
  return {.kind = signature.kind,
          .reduce_op = signature.reduce_op,
          .process_set = signature.process_set,
          .root_rank = signature.root_rank,
          .prescale = signature.prescale,
          .postscale = signature.postscale,
          .ranks = signature.ranks};
}

std::unique_ptr<Planner> Planner::Create(int rank, int size, std::uint64_t generation,
                                         Options options) {
  HVL_CHECK(size > 0 && rank >= 0 && rank < size, Format("rank {} of {}", rank, size));
  return std::make_unique<PlannerImpl>(rank, size, generation, options);
}

}  // namespace hvl::plan
