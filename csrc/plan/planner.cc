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
        participant_(rank, size, generation),
        verdict_(rank, size) {
    if (rank == 0) coordinator_.emplace(size, generation, options);
  }

  void Submit(Submission submission, TimePoint, Effects& effects) override {
    if (ended()) {
      effects.finish.push_back({submission.ticket, EndedError()});
      return;
    }
    participant_.Submit(std::move(submission), effects);
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
    if (ended() || !coordinator_) return;
    coordinator_->OnBatchFinished(sequence);
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
    const std::string pending = participant_.PendingText();
    const std::string waiting = pending.empty() ? "" : "; waiting for it: " + pending;
    verdict_.OnLost(rank, Status(cause.code(), cause.message() + waiting, rank), now);
    Pronounce(effects);
  }

  void Leave(const Status& cause, TimePoint, Effects& effects) override {
    if (std::exchange(left_, true)) return;
    const wire::Bytes frame = wire::Encode(wire::Bye{.generation = generation_,
                                                     .batches_finished = batches_finished_,
                                                     .cause = verdict_.Explain(cause)});
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !verdict_.HasLeft(peer)) effects.send.push_back({peer, frame});
    }
  }

  void Tick(TimePoint now, Effects& effects) override {
    if (ended()) return;
    verdict_.Tick(now);
    Pronounce(effects);
    if (ended() || !coordinator_) return;
    coordinator_->Tick(now, effects);
    Exchange(now, effects);
  }

  std::optional<TimePoint> next_deadline() const override {
    if (ended()) return std::nullopt;
    std::optional<TimePoint> deadline = verdict_.next_deadline();
    if (!coordinator_) return deadline;
    const std::optional<TimePoint> stall = coordinator_->next_deadline();
    if (!deadline || (stall && *stall < *deadline)) return stall;
    return deadline;
  }

  bool gathering() const override { return coordinator_ && coordinator_->gathering(); }
  std::size_t remembered_names() const override {
    return participant_.remembered_names() + (coordinator_ ? coordinator_->remembered_names() : 0);
  }
  void SetTracing(bool on) override {
    if (coordinator_) coordinator_->SetTracing(on);
  }

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
    ApplyDecision(decide, effects);
    if (!ended()) Exchange(now, effects);
  }

  void On(int from, wire::Bye&& bye, TimePoint now, Effects& effects) {
    verdict_.OnBye(from, bye.cause, now);
    Pronounce(effects);
    if (ended() || !bye.cause.ok()) return;
    // What a departure means is decided by the coordinator, in order with everything else; that of
    // the coordinator itself comes after its last decision anyway.
    if (coordinator_) {
      coordinator_->OnDeparture(from, bye.batches_finished);
      Exchange(now, effects);
    } else if (from == 0) {
      const Status status = participant_.Depart({0, bye.batches_finished}, effects);
      if (!status.ok()) End(status, effects);
    }
  }

  void Announce(wire::Announce&& announce, TimePoint now, Effects& effects) {
    if (!coordinator_) return effects.send.push_back({0, wire::Encode(announce)});
    const Status status = coordinator_->OnAnnounce(rank_, std::move(announce), now, effects);
    HVL_CHECK(status.ok(), status.message());
  }

  /// Brings what has been decided to all ranks, and acknowledges it where that is needed, until
  /// nobody has anything to say. The peers get encoded copies of the decisions.
  void Exchange(TimePoint now, Effects& effects) {
    while (!ended()) {
      if (!effects.fatal.ok()) return End(effects.fatal, effects);
      std::optional<wire::Announce> acknowledgement = participant_.TakeAcknowledgement();
      if (acknowledgement) Announce(std::move(*acknowledgement), now, effects);
      if (!coordinator_) return;
      const std::vector<wire::Decide> decisions = coordinator_->TakeDecisions();
      if (decisions.empty() && !acknowledgement) return;
      for (const wire::Decide& decide : decisions) {
        Broadcast(decide, effects);
        ApplyDecision(decide, effects);
      }
    }
  }

  void Broadcast(const wire::Decide& decide, Effects& effects) {
    if (size_ == 1) return;
    const wire::Bytes frame = wire::Encode(decide);
    for (int peer = 1; peer < size_; ++peer) {
      if (!verdict_.HasLeft(peer)) effects.send.push_back({peer, frame});
    }
  }

  void ApplyDecision(const wire::Decide& decide, Effects& effects) {
    const Status status = participant_.Apply(decide, effects);
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

std::unique_ptr<Planner> Planner::Create(int rank, int size, std::uint64_t generation,
                                         Options options) {
  HVL_CHECK(size > 0 && rank >= 0 && rank < size, Format("rank {} of {}", rank, size));
  return std::make_unique<PlannerImpl>(rank, size, generation, options);
}

}  // namespace hvl::plan
