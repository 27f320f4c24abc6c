#include "csrc/plan/verdict.h"

#include <utility>

#include "csrc/base/str.h"

namespace hvl::plan {

void Verdict::Accuse(int accuser, Status cause, TimePoint now) {
  if (!final_.ok() || !suspicion_.ok()) return;
  const bool named = cause.culprit_rank() >= 0 && cause.culprit_rank() < size_;
  suspicion_ = named ? std::move(cause) : Status(cause.code(), cause.message(), accuser);
  deadline_ = now + kGrace;
  Deliberate();
}

void Verdict::OnBye(int peer, const Status& cause, TimePoint now) {
  if (StateOf(peer) != State::kPresent) return;
  gone_[peer] = {State::kLeft, cause};
  if (!cause.ok()) Accuse(peer, cause, now);
  Deliberate();
}

void Verdict::OnLost(int peer, const Status& error, TimePoint now) {
  if (StateOf(peer) != State::kPresent) return;
  gone_[peer] = {State::kLost, error};
  Accuse(peer, error, now);
  Deliberate();
}

void Verdict::OnOutOfReach(int peer) {
  if (StateOf(peer) != State::kPresent) return;
  gone_[peer] = {State::kLost, {}};
  Deliberate();
}

void Verdict::Decide(Status error) {
  if (final_.ok()) final_ = std::move(error);
}

void Verdict::Tick(TimePoint now) {
  if (final_.ok() && !suspicion_.ok() && now >= deadline_) final_ = FollowBlame(suspicion_);
}

Status Verdict::FollowBlame(Status cause) const {
  // Each step goes to the last words of another peer; two that blame each other end the walk.
  for (int step = 0; step < size_; ++step) {
    const int culprit = cause.culprit_rank();
    if (!IsPeer(culprit) || StateOf(culprit) == State::kPresent) break;
    const Status& words = gone_.at(culprit).last_words;
    if (StateOf(culprit) == State::kLost) {
      if (words.ok() || words.culprit_rank() == culprit) break;
      cause = words;  // it is only that no way leads to it any more
      continue;
    }
    if (words.ok()) {
      // It only left; that its departure broke something is no failure of its own.
      if (cause.code() == StatusCode::kAborted) break;
      return {StatusCode::kAborted,
              Format("rank {} has left (shutdown) while other ranks still needed it", culprit),
              culprit};
    }
    if (words.culprit_rank() == culprit || words.culprit_rank() == rank_) return words;
    if (words.culprit_rank() == Status::kNoRank) return {words.code(), words.message(), culprit};
    cause = words;
  }
  return cause;
}

bool Verdict::IsHeard(const Status& cause) const {
  const int culprit = cause.culprit_rank();
  return !IsPeer(culprit) || StateOf(culprit) != State::kPresent;
}

void Verdict::Deliberate() {
  if (!final_.ok() || suspicion_.ok()) return;
  const Status cause = FollowBlame(suspicion_);
  if (IsHeard(cause)) final_ = cause;
}

Status Verdict::Explain(const Status& cause) const {
  const bool own_fault =
      !cause.ok() && (cause.culprit_rank() == rank_ || cause.culprit_rank() == Status::kNoRank);
  if (own_fault) return cause;  // nobody knows it better
  if (!final_.ok()) return final_;
  if (!suspicion_.ok()) return FollowBlame(suspicion_);
  return cause.ok() ? cause : FollowBlame(cause);
}

std::optional<TimePoint> Verdict::next_deadline() const {
  if (suspicion_.ok() || !final_.ok()) return std::nullopt;
  return deadline_;
}

}  // namespace hvl::plan
